"""GPL (Wang et al. 2022): generated queries and a cross-encoder's margins, for SPLADE or dense retrieval.

    generate queries ──► search them with each retriever ──► draw negatives ──► a cross-encoder's margins ──► Margin-MSE

Every step is a module of its own that skips what is done, and leaves its result in `<output>.parts`. Settings are those
of the paper (Iida & Okazaki 2022, section 4 and Appendix D).
"""

from dataclasses import dataclass, field
from math import ceil
from pathlib import Path

from cai_pyserini import artifact, cli
from cai_pyserini.beir import run_line
from cai_pyserini.config import EncoderConfig, load_encoder, load_index_config
from cai_pyserini.line import Line
from cai_pyserini.systems import System
from cai_pyserini.trainer import dense, generate, mine, score, settings, splade

TRAINING = {"batch_size": 24, "max_steps": 140_000, "warmup_steps": 1000, "max_document_length": 350}  # Appendix D


@dataclass(frozen=True)
class Settings:
    """What GPL can be told. Settings of its steps are in YAML files of their own."""

    collection: str = field(metadata={"help": "a name in index_configs/, a YAML file, or a BEIR folder"})
    base: str = field(metadata={"help": "the encoder to adapt, SPLADE or dense"})
    generator: str = field(metadata={"help": "query generator, such as BeIR/query-gen-msmarco-t5-base-v1"})
    cross_encoder: str = field(metadata={"help": "teacher, such as cross-encoder/ms-marco-MiniLM-L-6-v2"})
    output: str = field(metadata={"help": "folder for the checkpoint; the steps before it are in <output>.parts"})
    retrievers: list[str] = field(
        default_factory=list, metadata={"help": "encoders beside the base whose results are negatives, such as minilm"}
    )
    depth: int = field(default=50, metadata={"help": "negatives are among the first so many documents of each"})
    generate: str | None = field(default=None, metadata={"help": "YAML settings of query generation"})
    train: str | None = field(default=None, metadata={"help": "YAML settings of training"})
    seed: int = field(default=42, metadata={"help": "of all draws"})
    device: str = field(default="auto", metadata={"help": "auto, or cpu"})


def gpl(given: Settings) -> Path:
    """Write the adapted checkpoint."""
    parts = Path(f"{given.output}.parts")
    common: dict[str, object] = {"seed": given.seed, "device": given.device}
    fixed: dict[str, object] = {"collection": given.collection, "generator": given.generator}
    fixed |= {"output": str(parts / "generated")} | common
    generated = generate.generate(settings.load(generate.Settings, given.generate, fixed))
    base = load_encoder(given.base)
    runs = [_search(generated, encoder, parts, given) for encoder in (base, *map(load_encoder, given.retrievers))]

    trainer = dense if base.kind == "dense" else splade
    fixed = {"data": str(parts / "train.jsonl"), "base": given.base, "output": given.output, "loss": "margin-mse"}
    training = settings.load(trainer.Settings, given.train, fixed | common, TRAINING)
    wanted = training.batch_size * training.max_steps * training.negatives  # pairs that training will look at
    queries = artifact.require_manifest(generated, "generate")["queries"]
    negatives = min(given.depth * len(runs), max(1, ceil(wanted / queries)))
    negatives += -negatives % training.negatives
    mined = mine.mine(
        mine.Settings(
            collection=str(generated),
            runs=list(map(str, runs)),
            output=str(parts / "negatives.jsonl"),
            depth=given.depth,
            negatives=negatives,
            seed=given.seed,
        )
    )
    score.score(score.Settings(str(mined), given.cross_encoder, str(parts / "train.jsonl"), given.device))
    return trainer.train(training)


def _search(generated: Path, encoder: EncoderConfig, parts: Path, given: Settings) -> Path:
    """The run of an encoder for the generated queries."""
    name = "dense" if encoder.kind == "dense" else "splade" if encoder.query == "splade" else "splade-doc"
    line = Line(
        load_index_config(str(generated)),
        encoder,
        parts / "runs" / encoder.name,
        "train",
        given.device,
        dense_config=encoder,
    )
    run_line(line, [name])
    return line.run_path(System.parse(name))


def main() -> None:
    given = settings.parse(
        Settings,
        "Adapt a retriever with generated queries and a cross-encoder (GPL).",
        "python -m cai_pyserini.trainer.gpl --collection scifact --base splade-tiny --retrievers minilm "
        "--generator BeIR/query-gen-msmarco-t5-base-v1 --cross-encoder cross-encoder/ms-marco-MiniLM-L-6-v2 "
        "--output models/gpl",
    )
    print(f"{gpl(given)}: ./run_beir.sh {given.collection} --encoder {given.output}")


if __name__ == "__main__":
    cli.run(main)
