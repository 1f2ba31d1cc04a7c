"""Record the code of all stages in cai_pyserini/core/stages.json, and say which stages' code has changed.

    python -m tests.core.stages [STAGE ...]

raises the versions of the stages that are named (`impact`, or `'index bm25'`), whose results are other ones for the
same inputs and settings; of all others, it says that no result changes. If the code of a stage has changed, it then
runs the test that compares results with the recorded ones, which records those of raised versions.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from cai_pyserini.core.identity import code_of_stages
from cai_pyserini.core.source_code import TABLE, Record, SourceCode, recorded
from tests.experiments import outputs


def record(raised: list[str]) -> bool:
    """Write the table, and return whether the code of a stage has changed. Exits with a message for a stage that does
    not exist."""
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
    # A line for each stage, so that a change is one line.
    stages = ",\n".join(f"{json.dumps(name)}: {json.dumps(each._asdict())}" for name, each in after.items())
    text = f'{{\n"bytes": "{source.bytes_digest}",\n"stages": {{\n{stages}\n}}\n}}\n'
    Path(str(TABLE)).write_text(text, encoding="utf-8")
    return after != before


if __name__ == "__main__":
    if not record(sys.argv[1:]):
        sys.exit()
    test = "tests/experiments/test_stages.py::test_results_change_only_with_versions"
    environment = os.environ | {outputs.RECORD: "1"}
    sys.exit(subprocess.run([sys.executable, "-m", "pytest", "-q", "-n", "0", test], env=environment).returncode)
