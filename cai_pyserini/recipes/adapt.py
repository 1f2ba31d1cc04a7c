"""From a collection to a retriever adapted to it, in one command.

From a released SPLADE checkpoint, with nothing but documents: training on pseudo queries with in-batch and hard
negatives; with a teacher, a second training from the same checkpoint that distils it; then the mean of the old and the
new weights (Wortsman et al. 2022), which keeps what the checkpoint knew. docs/adaptation.md has what was tried.

From a plain language model, with a training file of MS MARCO (`--data`), the paper's way: vocabulary expansion,
pretraining on the collection, SPLADE training with Margin-MSE.

Both end with the collection's IDF and an encoder.yaml that names it.
"""

import random
from dataclasses import dataclass, field
from pathlib import Path

from cai_pyserini import artifact, cli
from cai_pyserini.artifact import file_digest
from cai_pyserini.cli import CaiError
from cai_pyserini.collection import open_collection
from cai_pyserini.config import checkpoint_digest, checkpoint_folder, load_encoder, load_index_config
from cai_pyserini.idf import compute
from cai_pyserini.trainer import generate, pretrain, score, settings, splade, vocabulary

SHORT = {"batch_size": 24, "warmup_steps": 50}
CONTRAST = SHORT | {"loss": "in-batch", "learning_rate": 5e-5, "max_steps": 400}
DISTIL = SHORT | {"learning_rate": 2e-4, "max_steps": 1200, "lambda_q": 0.01, "lambda_d": 0.01}
NEGATIVES = 4  # of a pseudo query, each in an example of its own
WEIGHTS = {"contrast": 0.6, "distil": 0.8}  # of the new weights in the mean: of one training, of two
STEPS = ("vocabulary", "pretrain", "generate", "splade", "distil")


@dataclass(frozen=True)
class Settings:
    """What adaptation can be told. Settings of its steps are in YAML files of their own."""

    collection: str = field(metadata={"help": "a name in index_configs/, a YAML file, or a BEIR folder"})
    base: str = field(metadata={"help": "a SPLADE encoder; with --data, any masked language model"})
    output: str = field(metadata={"help": "folder for the checkpoint, and for the steps before it in parts/"})
    data: str | None = field(default=None, metadata={"help": "training file of MS MARCO: the paper's way"})
    dense: str | None = field(default=None, metadata={"help": "teacher: a dense encoder, such as minilm"})
    cross_encoder: str | None = field(
        default=None, metadata={"help": "teacher: such as cross-encoder/ms-marco-MiniLM-L-6-v2"}
    )
    generator: str | None = field(
        default=None, metadata={"help": "writes the queries, such as BeIR/query-gen-msmarco-t5-base-v1"}
    )
    queries: int = field(default=5000, metadata={"help": "pseudo queries, at most"})
    weight: float | None = field(
        default=None,
        metadata={"help": "of the new weights in the mean of old and new; default: 0.6, with a teacher 0.8"},
    )
    vocabulary: str | None = field(default=None, metadata={"help": "YAML settings of the vocabulary step"})
    pretrain: str | None = field(default=None, metadata={"help": "YAML settings of pretraining"})
    generate: str | None = field(default=None, metadata={"help": "YAML settings of query generation"})
    splade: str | None = field(default=None, metadata={"help": "YAML settings of SPLADE training"})
    distil: str | None = field(default=None, metadata={"help": "YAML settings of the training with a teacher"})
    seed: int = field(default=42, metadata={"help": "of the draw of pseudo queries"})
    device: str = field(default="auto", metadata={"help": "auto, or cpu"})


def adapt(given: Settings) -> Path:
    """Write the adapted checkpoint with its IDF and encoder.yaml."""
    config = load_index_config(given.collection)
    collection = open_collection(config)
    base = load_encoder(given.base)
    output = Path(given.output)
    teachers = {name: spec for name in ("dense", "cross_encoder", "generator") if (spec := getattr(given, name))}
    if given.weight is not None and not 0 < given.weight <= 1:
        raise CaiError(f"--weight is {given.weight}; it must be above 0 and at most 1")
    if given.dense and given.cross_encoder:
        raise CaiError("--dense and --cross-encoder are both teachers; give one of them")
    if given.data and teachers:
        raise CaiError(f"--data has queries and margins; it goes without --{', --'.join(teachers)}")
    files = {step: path for step in STEPS if (path := getattr(given, step))}
    recipe = {
        "stage": "adapt",
        "format": 2,
        "documents": collection.fingerprint("documents"),
        "checkpoint": checkpoint_digest(checkpoint_folder(base)),
        "models": {name: checkpoint_digest(checkpoint_folder(load_encoder(spec))) for name, spec in teachers.items()},
        "data": given.data and file_digest(Path(given.data)),
        "files": {step: file_digest(Path(path)) for step, path in files.items()},
        "settings": settings.recipe(given, "collection", "base", "data", *teachers, *files),
    }
    if artifact.is_fresh(output, recipe):
        return output
    artifact.manifest_path(output).unlink(missing_ok=True)
    parts = output / "parts"
    common: dict[str, object] = {"device": given.device, "seed": given.seed}
    start = given.base
    fixed: dict[str, object]
    if given.data or given.vocabulary:
        fixed = {"corpus": [given.collection], "base": start, "output": str(parts / "vocabulary")}
        start = str(vocabulary.build(settings.load(vocabulary.Settings, given.vocabulary, fixed)))
    if given.data or given.pretrain:
        fixed = {"corpus": [given.collection], "base": start, "output": str(parts / "pretrained")} | common
        start = str(pretrain.pretrain(settings.load(pretrain.Settings, given.pretrain, fixed)))
    data = given.data or str(_examples(given, recipe, parts))
    fixed = {"data": data, "base": start, "output": str(parts / "splade")} | common
    trained = [splade.train(settings.load(splade.Settings, given.splade, fixed, {} if given.data else CONTRAST))]
    if given.dense or given.cross_encoder:
        fixed |= {"output": str(parts / "distilled")}
        trained.append(splade.train(settings.load(splade.Settings, given.distil, fixed, DISTIL)))
    weight = 1.0 if given.data else given.weight or WEIGHTS["distil" if len(trained) > 1 else "contrast"]
    _mean(checkpoint_folder(load_encoder(start)), trained, weight, output)
    compute(collection, output, output / "idf")
    settings.write_encoder(load_encoder(str(trained[0])), output, idf=output / "idf")
    artifact.write_manifest(output, recipe, {"weight": weight})
    return output


def _examples(given: Settings, recipe: artifact.Recipe, folder: Path) -> Path:
    """The training file of pseudo queries, with the teacher's margins where there is one."""
    from cai_pyserini.trainer.pseudo import write_examples

    generated = None
    if given.generator:
        fixed = {"collection": given.collection, "generator": given.generator, "output": str(folder / "generated")}
        common = {"seed": given.seed, "device": given.device}
        generated = generate.generate(settings.load(generate.Settings, given.generate, fixed | common))
    path = folder / "examples.jsonl"
    own = {key: recipe[key] for key in ("documents", "checkpoint")} | {
        "stage": "pseudo",
        "format": 1,
        "generated": generated and artifact.require_manifest(generated, "generate")["digest"],
        "teacher": recipe["models"].get("dense"),
        "settings": [given.queries, given.seed],
    }
    if not artifact.is_fresh(path, own):
        with artifact.building(path, own, folder=False) as (partial, facts):
            facts["examples"] = write_examples(
                load_index_config(given.collection),
                load_encoder(given.base),
                partial,
                given.queries,
                NEGATIVES,
                random.Random(given.seed),
                given.device,
                generated,
                load_encoder(given.dense) if given.dense else None,
            )
    if given.cross_encoder:
        return score.score(score.Settings(str(path), given.cross_encoder, str(folder / "scored.jsonl"), given.device))
    return path


def _mean(old: Path, new: list[Path], weight: float, output: Path) -> None:
    """Write (1 - weight) * old + weight * the mean of the new weights, with the tokenizer of all."""
    from transformers import AutoTokenizer

    from cai_pyserini.trainer import run

    first, *others = [run.load(path) for path in (old, *new)]
    states = [model.state_dict() for model in others]
    mean = {
        name: value.lerp(sum(state[name] for state in states) / len(states), weight)
        for name, value in first.state_dict().items()
        if value.is_floating_point()
    }
    first.load_state_dict(states[0] | mean)
    first.save_pretrained(output)
    AutoTokenizer.from_pretrained(str(new[0])).save_pretrained(output)


def main() -> None:
    given = settings.parse(
        Settings,
        "Adapt a retriever to a collection with nothing but its documents.",
        "python -m cai_pyserini.trainer.adapt --collection hpo --base splade-tiny --output models/hpo",
    )
    print(f"{adapt(given)}: ./run_beir.sh {given.collection} --encoder {given.output}")


if __name__ == "__main__":
    cli.run(main)
