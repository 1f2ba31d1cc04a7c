"""Recipes and digests, which identify a result by everything that shaped it.

    recipe = stage, its code, digests of its inputs, settings

The code is named by its version (core/stages.json) and, if it is not the code recorded for this version, as in an
edited clone, by its digest too.

Settings that are None, False or empty are omitted, and so are an encoder's settings with default values. Adding a
setting therefore changes no existing digest.
"""

import hashlib
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from typing import Any, NamedTuple

from cai_pyserini.core import source_code
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.file_formats import FORMATS
from cai_pyserini.core.version import VERSION

logger = logging.getLogger(__name__)
DIGEST = re.compile("[0-9a-f]{16,}")
# The names by which users know what recipes record, with words for its values (None: omitted).
NAMES: dict[str, tuple[str, dict[str, str]]] = {
    "alpha": ("--alpha", {"None": "estimated"}),
    "candidates": ("hits of the first step", {}),
    "checkpoint": ("the checkpoint", {}),
    "code": ("the code", {}),
    "depth": ("--depth", {}),
    "documents": ("documents or their passages", {}),
    "forward_index": ("--search", {"None": "exact", "True": "fast"}),
    "index documents": ("indexed or stored documents", {}),
    "index method": ("--dense-index", {"None": "flat"}),
    "max_length": ("max_document_length", {}),
    "measures": ("--measures", {}),
    "precision": ("--precision", {}),
    "raw": ("--no-raw", {"None": "true", "True": "false"}),
    "remove_query": ("--remove-query", {"None": "never", "True": "always"}),
    "seed": ("--seed", {}),
    "strict": ("--strict", {"None": "false"}),
    "tokenizer": ("the encoder's tokenizer", {}),
    "weights": ("--weights", {"None": "equal"}),
}
DERIVED = "candidates"  # follows from other settings
OMITTED: dict[str, Any] = {}  # the values of settings that recipes omit; core.config adds the defaults of encoders
Recipe = dict[str, Any]  # JSON values: stage, version, inputs, settings


class Stage(NamedTuple):
    """A kind of result."""

    command: str  # that makes it, after `cai-pyserini`
    code: str | dict[str, str]  # the modules that make it (see core.source_code), may be by variant
    pyserini: bool = False  # whether it depends on Pyserini's jar; later stages do so through their inputs


SEARCH = "indexes.retrieve -indexes.dense_index -indexes.milvus"
# By their names in recipes. Their versions are in stages.json.
STAGES = {
    "adapt": Stage("adapt", "trainer.adapt"),
    "adapt: balance": Stage("adapt", "trainer.choice"),
    "adapt: projection": Stage("adapt", "trainer.projection"),
    "adapt: pseudo queries": Stage("adapt", "trainer.adaptation_data"),
    "adapt: sample": Stage("adapt", "trainer.adaptation_data"),
    "beir": Stage("run", {"check": "collections.check", "evaluation": "runs.measures"}),
    "collection": Stage(
        "run", {name: f"collections.{name}" for name in ("beir_folder", "file_folder", "hpo", "ir_dataset")}
    ),
    "convert": Stage("convert", "collections.convert"),
    "encode": Stage(
        "stage encode",
        {
            f"{role} {kind}": f"vectors.encode {others} {unused}"
            for role, others in {"documents": "-vectors.queries", "queries": ""}.items()
            for kind, unused in {
                "splade": "-models.dense -models.idf",
                "dense": "-models.splade -models.idf",
                "dense idf": "-models.splade",
            }.items()
        },
    ),
    "expand": Stage("stage near-words", "vectors.near_words -models.splade"),
    "export": Stage(
        "export", "plugin.ciff plugin.milvus plugin.search_server plugin.seismic plugin.sentence_transformers"
    ),
    "fusion fuse": Stage("fuse", "runs.fuse"),
    "fusion rerank": Stage("rerank", "runs.rerank"),
    "idf": Stage("stage idf", "models.idf collections.contract"),
    "idf power": Stage("stage idf-power", "vectors.idf_power -models.dense -models.splade"),
    "impact": Stage("stage impact", "vectors.weighting -models.dense -models.splade"),
    "index": Stage(
        "stage index",
        {"bm25": "indexes.text_index", "dense": "indexes.dense_index", "impact": "indexes.impact_index"},
        pyserini=True,
    ),
    "judge export": Stage("judge export", "judging.judgments"),
    "near": Stage("stage near", "vectors.neighbours"),
    "plugin": Stage("plugin", {"export": "plugin.export", "prebuilt": "plugin.prebuilt -plugin.hook"}),
    "search": Stage(
        "stage search",
        {
            "bm25": f"{SEARCH} -indexes.faiss -indexes.lucene_impacts -models.encoder -vectors.queries",
            "dense": f"{SEARCH} -indexes.lucene_impacts -indexes.lucene_text -models.splade",
            "impact": f"{SEARCH} -indexes.faiss -indexes.lucene_text -models.dense -models.idf",
        },
    ),
    "ship": Stage("ship", "plugin.encoder plugin.index"),
    "smooth": Stage("stage near-documents", "vectors.near_documents"),
    "text": Stage(  # of a file in a format
        "run", {name: f"collections.file_text {format.module}" for name, format in FORMATS.items()}
    ),
    "trainer dense": Stage("train dense", "trainer.pairs"),
    "trainer generate": Stage("train generate", "trainer.generate"),
    "trainer mine": Stage("train mine", "trainer.training_files"),
    "trainer msmarco": Stage("train msmarco", "trainer.training_files"),
    "trainer pretrain": Stage("train pretrain", "trainer.pretrain"),
    "trainer score": Stage("train score", "trainer.training_files"),
    "trainer splade": Stage("train splade", "trainer.pairs"),
    "trainer vocabulary": Stage("train vocabulary", "trainer.vocabulary"),
    "words": Stage("stage words", "indexes.words", pyserini=True),
}


def recipe(stage: str, inputs: Mapping[str, Any], variant: str | None = None, /, **settings: Any) -> Recipe:
    """The recipe of a result of a stage; `inputs` has digests by name. `variant`, by default the setting `kind`, says
    which of the stage's code makes it. Raises KeyError for a stage or variant not in STAGES."""
    made_by = {"stage": stage, **code(stage, variant or settings.get("kind", ""))}
    if STAGES[stage].pyserini:
        made_by["pyserini"] = version("pyserini")
    return {**made_by, "inputs": _without_empty(inputs), "settings": _without_empty(settings)}


def code(stage: str, variant: str = "") -> dict[str, Any]:
    """The identity of a stage's code: its version, and its digest if that is not the recorded one of this version.
    Raises CaiError if the code has been edited since this process began, which may run it, or that from before."""
    name = _name(stage, variant)
    if edited := _running().edited(_variants(stage)[variant]):
        raise CaiError(
            f"the code of {stage} has been edited since this process began ({', '.join(edited)}): start again, in a "
            "notebook its kernel"
        )
    if digest := changed_stages().get(name):
        _note_change(stage)
    return {"version": _recorded(name).version, **({"code": digest} if digest else {})}


@cache
def _running() -> source_code.SourceCode:
    return source_code.SourceCode()


@cache
def changed_stages() -> dict[str, str]:
    """The digests of all code that is not the recorded one; none if the package is installed without sources."""
    if not _running().has_sources or _running().bytes_digest == source_code.recorded()[1]:
        return {}
    found = {name: _running().digest(code) for name, code in code_of_stages().items()}
    return {name: digest for name, digest in found.items() if digest != _recorded(name).code}


def _recorded(name: str) -> source_code.Record:
    """A stage as it is recorded; one that is not has no code that its own could be equal to."""
    return source_code.recorded()[0].get(name, source_code.Record(1, ""))


@cache  # once per process
def _note_change(stage: str) -> None:
    logger.warning("the code of %s differs from %s: made again", stage, VERSION)


def is_of_this_code(recipe: Recipe, variant: str = "") -> bool:
    """Whether a stage's code is that by which a result was made."""
    return {key: recipe[key] for key in ("version", "code") if key in recipe} == code(recipe["stage"], variant)


def code_of_stages() -> dict[str, str]:
    """The code of each stage, by its name with the variant, as in stages.json."""
    return {_name(stage, variant): code for stage in STAGES for variant, code in _variants(stage).items()}


def _name(stage: str, variant: str) -> str:
    return f"{stage} {variant}" if variant else stage


def _variants(stage: str) -> dict[str, str]:
    code = STAGES[stage].code
    return {"": code} if isinstance(code, str) else code


def command_of(stage: str) -> str:
    """The command that makes what a stage makes, such as `cai-pyserini stage idf`."""
    return f"`cai-pyserini {STAGES[stage].command}`"


def _without_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value or (value == 0 and value is not False)}


def digest(value: Any) -> str:
    """A short hash of a JSON value. The order of keys does not count; where it matters, pass a list of pairs."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def same_documents(first: Sequence[str | None] | None, second: Sequence[str | None] | None) -> bool:
    """Whether two results of Collection.documents_digest can belong to the same documents; None means unknown."""
    if first is None or second is None:
        return True
    return any(one is not None and one == other for one, other in zip(first, second, strict=True))


def changes(before: Recipe, after: Recipe) -> str:
    """Describe how two recipes differ: `--depth 50, was 100; vectors changed`."""
    old, new = dict(_flattened(before)), dict(_flattened(after))
    found = {}
    for path in dict.fromkeys([*old, *new]):
        if old.get(path) != new.get(path):
            key = path.rpartition(".")[2]
            name, words = NAMES.get(f"{after.get('stage')} {key}") or NAMES.get(key, (key, {}))
            now, then = (words.get(str(each.get(path))) or _shown(key, each.get(path)) for each in (new, old))
            is_short = not any(len(value) > 30 or DIGEST.search(value) for value in (now, then))
            found[key] = f"{name} {now}, was {then}" if is_short else f"{name} changed"
    if len(found) > 1:
        found.pop(DERIVED, None)
    return "; ".join(found.values())


def _shown(key: str, value: Any) -> str:
    """A value of a setting, or the one that recipes omit, as it is given on a command line."""
    if value is None and (value := OMITTED.get(key)) is None:
        return "unset"
    if isinstance(value, list):
        return " ".join(map(str, value))
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if text.split() == [text] else json.dumps(text)


def _flattened(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, item in value.items():
        if isinstance(item, Mapping):
            yield from _flattened(item, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", item
