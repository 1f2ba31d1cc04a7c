"""Record the code of all stages in cai_pyserini/core/stages.json, and say which stages' code has changed.

    python -m tests.core.stages [STAGE ...]

raises the versions of the stages that are named (`impact`, or `'index bm25'`), whose results are other ones for the
same inputs and settings; of all others, it says that no result changes. Then it runs the test that compares results
with the recorded ones, which records those of raised versions.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from cai_pyserini.core.identity import code_of_stages
from cai_pyserini.core.source_code import TABLE, Record, SourceCode, recorded
from tests.experiments import outputs


def record(raised: list[str]) -> None:
    """Write the table. Exits with a message for a stage that does not exist."""
    source, before = SourceCode(), recorded()[0]
    after: dict[str, Record] = {}
    for name, code in code_of_stages().items():
        is_raised = any(name == each or name.startswith(f"{each} ") for each in raised)
        old = before.get(name, Record(0, ""))
        after[name] = Record(old.version + (is_raised or not old.version), source.digest(code))
        if after[name] != old:
            change = f"version {old.version} → {after[name].version}" if is_raised else "code changed, results did not"
            print(f"{name}: {change}")
    if unknown := [each for each in raised if not any(f"{name} ".startswith(f"{each} ") for name in after)]:
        sys.exit(f"no stage {', '.join(unknown)}: the stages are {', '.join(after)}")
    parts = {
        "stages": {name: each._asdict() for name, each in after.items()},
        "files": {name: " ".join([*file[:2], *file.needs]) for name, file in sorted(source.files.items())},
    }
    text = ",\n".join(f'"{part}": {{\n{_lines(values)}\n}}' for part, values in parts.items())
    Path(str(TABLE)).write_text(f"{{\n{text}\n}}\n", encoding="utf-8")


def _lines(values: dict[str, object]) -> str:
    """A line for each value, so that a change is one line."""
    return ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in values.items())


if __name__ == "__main__":
    record(sys.argv[1:])
    test = "tests/experiments/test_stages.py::test_results_change_only_with_versions"
    environment = os.environ | {outputs.RECORD: "1"}
    sys.exit(subprocess.run([sys.executable, "-m", "pytest", "-q", "-n", "0", test], env=environment).returncode)
