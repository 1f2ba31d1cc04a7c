"""The constants that shape a result, read from the source of all modules that its stage imports, directly or not.

A recipe holds every one of them, so that none can be forgotten: a constant that changes makes the result again. Only
those in UNRECORDED, on which no result depends, are left out. Where a stage writes something else without any change of
a constant, add one, such as VERSION = 2. The source is parsed, not imported: nothing heavy is loaded.
"""

import ast
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT.name
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")
VERSIONS = {"core.jvm": "pyserini"}  # a module -> the package whose version shapes what is made with it

UNRECORDED = {  # buffers, batches, numbers of processes and intervals; messages; and what recipes have by its value
    "collection.beir_folder": ("QRELS", "REMEDY", "SHARDS", "STEMS"),  # which files, whose digests are recorded
    "collection.check": ("REMEDIES",),
    "collection.records": ("BATCH", "READERS", "SUFFIXES"),
    "convert.convert": ("READERS",),
    "core.artifact": ("EDITED", "MANIFEST", "PACKAGES", "PARTIAL", "UNFINISHED", "UNLISTED"),
    "core.cluster": ("ATTEMPTS", "LOCAL", "OBJECTS", "PATIENCE"),
    "core.config": ("LOCATED",),
    "core.constants": ("CONSTANT", "PACKAGE", "ROOT", "UNRECORDED", "VERSIONS"),
    "core.flags": ("COLLECTION_TEXT", "OR_URL"),
    "core.jvm": ("HEAP", "OLDEST"),
    "core.lock": ("HOST",),
    "core.packages": ("PIP", "ROOT"),
    "core.processes": ("MOST",),
    "core.store": ("BLOCK", "URL"),
    "core.terminal": ("REMEDIES",),
    "core.trec": ("PART",),
    "encode.encode": ("SAVE_SECONDS",),
    "vectors.shards": ("NAMES", "THREADS", "UNREADABLE"),
    "fusion.fusions": ("DEFAULT", "DEPTH"),
    "fusion.rescore": ("PAIRS",),
    "impact.impacts": ("LEAST_SHARDS",),
    "index.bm25": ("BUFFER_MB", "HEAP"),
    "index.impact": ("BATCH", "LEAST_BYTES"),
    "index.writer": ("RAM_BUFFER_MB",),
    "models.cross_encoder": ("TOKENIZED",),
    "models.dense": ("REMEDY",),
    "models.head": ("BLOCK_BYTES",),
    "models.transformer": ("CPU_BATCH", "GPU_BATCH"),
    "models.windows": ("TOKENIZED",),
    "retrieval.faiss": ("BATCH",),
    "retrieval.lucene": ("HITS",),
    "retrieval.search": ("WARM_UP",),
    "smooth.neighbours": ("SAMPLE",),
    "smooth.smooth": ("BATCH",),
    "trainer.callbacks": ("BAR_SECONDS", "LINE_SECONDS", "SAVE_SHARE", "WARM_UP"),
    "trainer.settings": ("PAPER_WARMUP", "UNRECORDED", "WARMUP"),
    "trainer.training": ("CHECKPOINT_FILES", "MEASURED", "RESULT", "WORK", "WORTH_MEASURING"),
    "trainer.wordpiece": ("BATCH",),
}


@cache
def constants(module: str) -> dict[str, str]:
    """The constants of a module of this package, and of all that it imports, as module.NAME -> expression; and the
    versions of packages that VERSIONS names."""
    found: dict[str, str] = {}
    for name in sorted(_imported(module.removeprefix(f"{PACKAGE}."))):
        own = _constants(name)
        found |= {f"{name}.{key}": own[key] for key in own if key not in UNRECORDED.get(name, ())}
        if package := VERSIONS.get(name):
            found[package] = _version(package)
    return found


def _imported(module: str) -> set[str]:
    """The module, all that it imports, and core.artifact."""
    seen: set[str] = set()
    todo = {module, "core.artifact"}
    while todo:
        name = todo.pop()
        seen.add(name)
        todo |= _imports(name) - seen
    return seen


@cache
def _imports(module: str) -> set[str]:
    """The modules of this package that a module imports anywhere, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(_parsed(module)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    ours = {name.removeprefix(f"{PACKAGE}.") for name in names if name.startswith(f"{PACKAGE}.")}
    return {name for name in ours if _file(name).is_file()}


@cache
def _constants(module: str) -> dict[str, str]:
    """The constants of one module, also those inside it. Flags are left out: recipes have their values, as settings."""
    found: dict[str, str] = {}
    for node in ast.walk(_parsed(module)):
        if not isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) or node.value is None:
            continue
        if isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name) and node.value.func.id == "flag":
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            for name in ast.walk(target):
                if isinstance(name, ast.Name) and CONSTANT.fullmatch(name.id):
                    before = f"{found[name.id]}; " if name.id in found else ""
                    found[name.id] = before + ast.unparse(node.value)
    return found


@cache
def _parsed(module: str) -> ast.Module:
    file = _file(module)
    return ast.parse(file.read_bytes() if file.is_file() else b"")


def _file(module: str) -> Path:
    return ROOT / f"{module.replace('.', '/')}.py"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
