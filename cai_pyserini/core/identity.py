"""Identity: a result is named by what shaped it.

    recipe = the stage and the version of its code, the digests of its inputs, and its own settings

Settings that are None, False or empty are left out, and so are those of an encoder that have their defaults: a new
setting leaves every existing digest as it was, unless it is used.
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

# Raise the version of a stage when it makes something else of the same inputs and settings; others have version 1.
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
JAVA = ("words", "index")  # stages whose results depend on Pyserini's jar, and whose digests others have in theirs


def recipe(stage: str, inputs: Mapping[str, Any], **settings: Any) -> Recipe:
    """The recipe of a result; `stage` is the command that makes it, `inputs` has digests by name."""
    made = {"stage": stage, "version": VERSIONS.get(stage, 1)}
    if stage in JAVA:
        made["pyserini"] = _pyserini()
    return {**made, "inputs": _given(inputs), "settings": _given(settings)}


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value or (value == 0 and value is not False)}


@cache
def _pyserini() -> str:
    try:
        return version("pyserini")
    except PackageNotFoundError:
        return ""


def digest(value: Any) -> str:
    """A short hash of a JSON value: equal values have equal digests, and the order of an object's keys does not count.
    Where something relies on an order, as rows of query vectors do on that of the topics, give a list of pairs."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def same_documents(first: Sequence[str | None] | None, second: Sequence[str | None] | None) -> bool:
    """Whether two digests of documents, see Collection.documents_digest, can be of the same ones: None is not known."""
    if first is None or second is None:
        return True
    return any(one is not None and one == other for one, other in zip(first, second, strict=True))


def changes(before: Recipe, after: Recipe) -> str:
    """How two recipes differ, in words: `depth 100 → 50, vectors changed`."""
    old, new = dict(_flat(before)), dict(_flat(after))
    said = []
    for name in dict.fromkeys([*old, *new]):
        if old.get(name) != new.get(name):
            values = [str(each.get(name, "default")) for each in (old, new)]
            short = not any(len(value) > 30 or DIGEST.search(value) for value in values)
            label = name.removeprefix("settings.").removeprefix("inputs.")
            said.append(f"{label} {values[0]} → {values[1]}" if short else f"{label} changed")
    return ", ".join(said)


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, item in value.items():
        if isinstance(item, Mapping):
            yield from _flat(item, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", item
