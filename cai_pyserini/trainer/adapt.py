"""From a collection to a retriever adapted to it, in one command.

From a released SPLADE checkpoint, with nothing but documents: training on pseudo queries with in-batch and hard
negatives, then a mean of the old and the new weights (Wortsman et
al. 2022), which keeps what the checkpoint knew. docs/adaptation.md has what was tried for the defaults.

From a plain language model, with a training file of MS MARCO (`--data`), the paper's way: vocabulary expansion,
pretraining on the collection, SPLADE training with Margin-MSE.

Both end with the collection's IDF and an encoder.yaml that names it.
"""

from dataclasses import dataclass, field
from pathlib import Path

from cai_pyserini import artifact, cli
from cai_pyserini.artifact import file_digest
from cai_pyserini.cli import CaiError
from cai_pyserini.collection import open_collection
from cai_pyserini.config import checkpoint_digest, checkpoint_folder, load_encoder, load_index_config
from cai_pyserini.idf import compute
from cai_pyserini.trainer import pretrain, settings, splade, vocabulary

PSEUDO = {"loss": "in-batch", "batch_size": 24, "learning_rate": 5e-5, "warmup_steps": 50, "max_steps": 400}
NEGATIVES = 4  # of a pseudo query, each in an example of its own


@dataclass(frozen=True)
class Settings:
    """What adaptation can be told. Settings of its steps are in YAML files of their own."""

    collection: str = field(metadata={"help": "a name in index_configs/, a YAML file, or a BEIR folder"})
    base: str = field(metadata={"help": "a SPLADE encoder; with --data, any masked language model"})
    output: str = field(metadata={"help": "folder for the checkpoint, and for the steps before it in parts/"})
    data: str | None = field(default=None, metadata={"help": "training file of MS MARCO: the paper's way"})
    queries: int = field(default=5000, metadata={"help": "pseudo queries, at most"})
    weight: float = field(default=0.6, metadata={"help": "of the new weights in the mean of old and new"})
    vocabulary: str | None = field(default=None, metadata={"help": "YAML settings of the vocabulary step"})
    pretrain: str | None = field(default=None, metadata={"help": "YAML settings of pretraining"})
    splade: str | None = field(default=None, metadata={"help": "YAML settings of SPLADE training"})
    seed: int = field(default=42, metadata={"help": "of the draw of pseudo queries"})
    device: str = field(default="auto", metadata={"help": "auto, or cpu"})


def adapt(given: Settings) -> Path:
    """Write the adapted checkpoint with its IDF and encoder.yaml."""
    config = load_index_config(given.collection)
    collection = open_collection(config)
    base = load_encoder(given.base)
    output = Path(given.output)
    if not 0 < given.weight <= 1:
        raise CaiError(f"--weight is {given.weight}; it must be above 0 and at most 1")
    files = {step: path for step in ("vocabulary", "pretrain", "splade") if (path := getattr(given, step))}
    recipe = {
        "stage": "adapt",
        "format": 1,
        "documents": collection.fingerprint("documents"),
        "checkpoint": checkpoint_digest(checkpoint_folder(base)),
        "data": given.data and file_digest(Path(given.data)),
        "files": {step: file_digest(Path(path)) for step, path in files.items()},
        "settings": settings.recipe(given, "collection", "base", "data", *files),
    }
    if artifact.is_fresh(output, recipe):
        return output
    artifact.manifest_path(output).unlink(missing_ok=True)
    parts = output / "parts"
    training = {"device": given.device, "seed": given.seed}
    start = given.base
    fixed: dict[str, object]
    if given.data or given.vocabulary:
        fixed = {"corpus": [given.collection], "base": start, "output": str(parts / "vocabulary")}
        start = str(vocabulary.build(settings.load(vocabulary.Settings, given.vocabulary, fixed)))
    if given.data or given.pretrain:
        fixed = {"corpus": [given.collection], "base": start, "output": str(parts / "pretrained")} | training
        start = str(pretrain.pretrain(settings.load(pretrain.Settings, given.pretrain, fixed)))
    fixed = {"data": given.data or str(_examples(given, recipe, parts)), "base": start, "output": str(parts / "splade")}
    usual = {} if given.data else PSEUDO
    trained = splade.train(settings.load(splade.Settings, given.splade, fixed | training, usual))
    weight = 1.0 if given.data else given.weight
    _mean(checkpoint_folder(load_encoder(start)), trained, weight, output)
    compute(collection, output, output / "idf")
    settings.write_encoder(load_encoder(str(trained)), output, idf=output / "idf")
    artifact.write_manifest(output, recipe, {"weight": weight})
    return output


def _examples(given: Settings, recipe: artifact.Recipe, folder: Path) -> Path:
    """The training file of pseudo queries."""
    from cai_pyserini.trainer.pseudo import write_examples

    path = folder / "examples.jsonl"
    keys = ("documents", "checkpoint")
    own = {key: recipe[key] for key in keys} | {"stage": "pseudo", "format": 1, "settings": [given.queries, given.seed]}
    if not artifact.is_fresh(path, own):
        folder.mkdir(parents=True, exist_ok=True)
        config, encoder = load_index_config(given.collection), load_encoder(given.base)
        with artifact.building(path, own, folder=False) as (partial, facts):
            facts["examples"] = write_examples(
                config, encoder, partial, given.queries, NEGATIVES, given.seed, given.device
            )
    return path


def _mean(old: Path, new: Path, weight: float, output: Path) -> None:
    """Write (1 - weight) * old + weight * new, with the tokenizer of both."""
    from transformers import AutoTokenizer

    from cai_pyserini.trainer import run

    first, model = run.load(old).state_dict(), run.load(new)
    second = model.state_dict()
    floats = [name for name, value in second.items() if value.is_floating_point()]
    model.load_state_dict(second | {name: first[name].lerp(second[name], weight) for name in floats})
    model.save_pretrained(output)
    AutoTokenizer.from_pretrained(str(new)).save_pretrained(output)


def main() -> None:
    given = settings.parse(
        Settings,
        "Adapt a retriever to a collection with nothing but its documents.",
        "python -m cai_pyserini.trainer.adapt --collection hpo --base splade-tiny --output models/hpo",
    )
    print(f"{adapt(given)}: ./run_beir.sh {given.collection} --encoder {given.output}")


if __name__ == "__main__":
    cli.run(main)
