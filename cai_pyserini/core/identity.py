"""Recipes and digests, which identify a result by everything that shaped it.

    recipe = stage, version of its code, digests of its inputs, settings

Settings that are None, False or empty are omitted, and so are an encoder's settings with default values. Adding a
setting therefore changes no existing digest.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

DIGEST = re.compile("[0-9a-f]{16,}")
Recipe = dict[str, Any]  # JSON values: stage, version, inputs, settings


class Stage(NamedTuple):
    """A kind of result."""

    command: str  # that makes it, after `cai-pyserini`
    version: int | dict[str, int] = 1  # raise it if the result for the same inputs and settings changes; may be by kind
    pyserini: bool = False  # whether it depends on Pyserini's jar; later stages do so through their inputs


# By their names in recipes.
STAGES = {
    "adapt": Stage("adapt", 4),
    "adapt: balance": Stage("adapt", 4),
    "adapt: projection": Stage("adapt"),
    "adapt: pseudo queries": Stage("adapt", 2),
    "adapt: sample": Stage("adapt"),
    "beir": Stage("run"),
    "collection": Stage("run", 2),
    "convert": Stage("convert"),
    "convert checkpoint": Stage("convert checkpoint"),
    "encode": Stage("stage encode"),
    "expand": Stage("stage expand", 7),
    "export": Stage("export", 2),
    "fusion fuse": Stage("fuse", 2),
    "fusion rerank": Stage("rerank", 3),
    "idf": Stage("stage idf"),
    "impact": Stage("stage impact", 2),
    "index": Stage("stage index", {"bm25": 2, "dense": 2, "impact": 2}, pyserini=True),
    "judge examples": Stage("judge examples"),
    "judge export": Stage("judge export"),
    "near": Stage("stage near"),
    "plugin": Stage("plugin"),
    "search": Stage("stage search", 3),
    "ship": Stage("ship", 3),
    "smooth": Stage("stage smooth", 2),
    "trainer dense": Stage("train dense"),
    "trainer generate": Stage("train generate", 2),
    "trainer mine": Stage("train mine", 2),
    "trainer msmarco": Stage("train msmarco"),
    "trainer pretrain": Stage("train pretrain"),
    "trainer score": Stage("train score", 2),
    "trainer splade": Stage("train splade"),
    "trainer vocabulary": Stage("train vocabulary", 2),
    "words": Stage("stage words", 5, pyserini=True),
}


def recipe(stage: str, inputs: Mapping[str, Any], **settings: Any) -> Recipe:
    """The recipe of a result of a stage; `inputs` has digests by name. Raises KeyError for a stage not in STAGES."""
    number = STAGES[stage].version
    code = {"stage": stage, "version": number if isinstance(number, int) else number[settings["kind"]]}
    if STAGES[stage].pyserini:
        code["pyserini"] = version("pyserini")
    return {**code, "inputs": _without_empty(inputs), "settings": _without_empty(settings)}


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
    """Describe how two recipes differ: `depth 100 → 50, vectors changed`."""
    old, new = dict(_flattened(before)), dict(_flattened(after))
    descriptions = []
    for name in dict.fromkeys([*old, *new]):
        if old.get(name) != new.get(name):
            values = [str(each.get(name, "default")) for each in (old, new)]
            short = not any(len(value) > 30 or DIGEST.search(value) for value in values)
            label = name.removeprefix("settings.").removeprefix("inputs.")
            descriptions.append(f"{label} {values[0]} → {values[1]}" if short else f"{label} changed")
    return ", ".join(descriptions)


def _flattened(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, item in value.items():
        if isinstance(item, Mapping):
            yield from _flattened(item, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", item
