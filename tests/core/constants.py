"""The constants of the code that shape results, which tests/core/test_identity.py compares with those on record.

    python -m tests.core.constants

records them, in constants.json.
"""

import ast
import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2] / "cai_pyserini"
RECORDED = Path(__file__).with_name("constants.json")
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")
ROOMS = (
    "adapt",
    "collection",
    "convert",
    "encode",
    "expand",
    "fusion",
    "idf",
    "impact",
    "index",
    "models",
    "retrieval",
)
ROOMS += ("near", "smooth", "trainer", "vectors", "words")  # where data is made
# Batches, buffers, intervals, names of files and messages: no result depends on them.
HARMLESS = re.compile(
    r"BATCH|BUFFER|BLOCK|HEAP|SECONDS|THREADS|LEAST|MOST|NAMES|REMED|STAGE|UNREADABLE|_FILES|RESULT|FUSIONS|SUFFIXES"
)


def constants() -> dict[str, str]:
    """module.NAME -> expression."""
    found: dict[str, str] = {}
    for path in sorted(path for room in ROOMS for path in (ROOT / room).glob("*.py")):
        module = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            shapes_results = ast.BinOp | ast.Constant | ast.Dict | ast.Tuple
            text = isinstance(node, ast.Assign) and isinstance(getattr(node.value, "value", None), str)
            if isinstance(node, ast.Assign) and isinstance(node.value, shapes_results) and not text:
                names = [target.id for target in node.targets if isinstance(target, ast.Name)]
                shaping = [name for name in names if CONSTANT.fullmatch(name) and not HARMLESS.search(name)]
                found |= {f"{module}.{name}": ast.unparse(node.value) for name in shaping}
    return found


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(constants(), indent=1) + "\n", encoding="utf-8")
