"""GPL (Wang et al. 2022): generated queries and a cross-encoder's margins, for SPLADE or dense retrieval.

    generate queries ──► search them with each retriever ──► draw negatives ──► a cross-encoder's margins ──► Margin-MSE

Every step skips what is done, and keeps its result in `<output>.steps`. The defaults are those of the paper (Iida &
Okazaki 2022, section 4 and Appendix D).
"""

from math import ceil
from pathlib import Path

from cai_pyserini.beir.experiment import Experiment
from cai_pyserini.beir.plan import plan
from cai_pyserini.beir.run_folder import RunFolder
from cai_pyserini.beir.systems import parse_system
from cai_pyserini.core import artifact, steps
from cai_pyserini.core.config import EncoderConfig, load_encoder, load_index_config
from cai_pyserini.encode.encoder import Encoder
from cai_pyserini.gpl.settings import GplSettings
from cai_pyserini.trainer import generate
from cai_pyserini.trainer.dense import DenseTraining
from cai_pyserini.trainer.examples import count
from cai_pyserini.trainer.mine import mine
from cai_pyserini.trainer.pairs import PairTraining
from cai_pyserini.trainer.score import score
from cai_pyserini.trainer.settings import (
    DenseSettings,
    GenerateSettings,
    MineSettings,
    ScoreSettings,
    SpladeSettings,
    load_step,
)
from cai_pyserini.trainer.splade import SpladeTraining
from cai_pyserini.trainer.training import require_one_gpu, total_steps

TRAINING = {"batch_size": 24, "max_steps": 140_000, "warmup": 0.00714, "max_document_length": 350}  # Appendix D


def gpl(settings: GplSettings) -> Path:
    """Write the adapted checkpoint."""
    require_one_gpu(settings.device)
    folder = settings.output.with_name(f"{settings.output.name}.steps")
    common = {"seed": settings.seed, "device": settings.device}
    encoders = [load_encoder(spec) for spec in (settings.base, *settings.retrievers)]
    generation = load_step(
        GenerateSettings,
        settings.generate,
        common | {"collection": settings.collection, "generator": settings.generator, "output": folder / "generated"},
    )
    training = _training(settings, encoders[0], common | {"data": folder / "train.jsonl"})

    for encoder in encoders:
        Encoder(encoder, settings.device).require_loadable("documents", "queries")
    training.require_positions()
    generated = generate.generate(generation)
    runs = [_search(generated, encoder, folder, settings.device) for encoder in encoders]
    queries = artifact.require(generated, generate.STAGE).stats["queries"]
    mined = mine(
        MineSettings(
            collection=str(generated),
            runs=runs,
            output=folder / "negatives.jsonl",
            depth=settings.depth,
            negatives=_negatives(training, queries, settings.depth * len(runs)),
            seed=settings.seed,
        )
    )
    count(mined, margins=False, negatives=training.settings.negatives)  # before hours of scoring
    score(
        ScoreSettings(
            data=mined,
            cross_encoder=settings.cross_encoder,
            output=folder / "train.jsonl",
            device=settings.device,
        )
    )
    return training.run()


def _training(settings: GplSettings, base: EncoderConfig, fixed: dict[str, object]) -> PairTraining:
    fixed |= {"base": settings.base, "output": settings.output, "loss": "margin-mse"}
    if base.kind == "dense":
        return DenseTraining(load_step(DenseSettings, settings.train, fixed, TRAINING))
    return SpladeTraining(load_step(SpladeSettings, settings.train, fixed, TRAINING))


def _negatives(training: PairTraining, queries: int, candidates: int) -> int:
    """How many negatives each query needs so that no pair is seen twice in the training, if there are enough."""
    settings = training.settings
    pairs = settings.batch_size * settings.accumulate * total_steps(settings, queries) * settings.negatives
    negatives = min(candidates, max(1, ceil(pairs / queries)))
    return negatives + -negatives % settings.negatives


def _search(generated: Path, encoder: EncoderConfig, folder: Path, device: str) -> Path:
    """The run of an encoder for the generated queries."""
    name = "dense" if encoder.kind == "dense" else "splade" if encoder.query == "splade" else "splade-doc"
    collection, system = load_index_config(str(generated)).replace(split="train"), parse_system(name)
    experiment = Experiment(collection=collection, encoder=encoder, device=device, dense=encoder)
    run = RunFolder(folder / "runs" / encoder.name, experiment)
    steps.run(plan(run, [system]))
    return run.run(system)
