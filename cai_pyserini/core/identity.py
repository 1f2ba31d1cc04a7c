"""Recipes and digests, which identify a result by everything that shaped it.

    recipe = stage, version of its code, digests of its inputs, settings

Settings that are None, False or empty are omitted, and so are an encoder's settings with default values. Adding a
setting therefore changes no existing digest.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

DIGEST = re.compile("[0-9a-f]{16,}")
Recipe = dict[str, Any]  # JSON values: stage, version, inputs, settings

# Raise the version of a stage when its result for the same inputs and settings changes; stages not listed have 1.
VERSIONS = {
    "adapt": 3,
    "adapt: balance": 3,
    "adapt: pseudo queries": 2,
    "expand": 6,
    "fusion fuse": 2,
    "fusion rerank": 3,
    "impact": 2,
    "index": 2,
    "search": 2,
    "ship": 2,
    "smooth": 2,
    "trainer generate": 2,
    "trainer mine": 2,
    "trainer score": 2,
    "trainer vocabulary": 2,
    "words": 4,
}
# The commands of stages that are not called as they are.
COMMANDS = {"beir": "run", "fusion fuse": "fuse", "fusion rerank": "rerank"}
PARTS = ("idf", "encode", "words", "near", "smooth", "expand", "impact", "index", "search")  # `stage …`
JAVA = ("words", "index")  # stages that depend on Pyserini's jar; later stages depend on it through their digests


def recipe(stage: str, inputs: Mapping[str, Any], **settings: Any) -> Recipe:
    """The recipe of a result; `stage` is the command that makes it, `inputs` has digests by name."""
    code = {"stage": stage, "version": VERSIONS.get(stage, 1)}
    if stage in JAVA:
        code["pyserini"] = _pyserini_version()
    return {**code, "inputs": _without_empty(inputs), "settings": _without_empty(settings)}


def command_of(stage: str) -> str:
    """The command that makes what a stage makes, such as `cai-pyserini stage idf`."""
    command = COMMANDS.get(stage) or ("stage " * (stage in PARTS) + stage.replace("trainer ", "train "))
    return f"`cai-pyserini {command.partition(':')[0]}`"


def _without_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value or (value == 0 and value is not False)}


@cache
def _pyserini_version() -> str:
    try:
        return version("pyserini")
    except PackageNotFoundError:
        return ""


def digest(value: Any) -> str:
    """A short hash of a JSON value, independent of the order of an object's keys. If the order matters, as the order
    of topics does for the rows of query vectors, pass a list of pairs."""
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
