"""Claim: with a dense teacher, adapting splade-tiny takes at most ten minutes for SciFact and at most four for the demo
collection, on two CPU cores.

`python -m cai_pyserini.adapt` is run as a process of its own, from nothing: it also encodes all documents, which a run
folder has anyway. The line of the result, adapted/manifest.json, is the choice of weights.
"""

import json
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import harness


def adapt(collection: str, encoder: str, dense: str) -> harness.Result:
    """Adapt in an empty folder: the seconds of the whole, and of the steps that are stored."""
    with TemporaryDirectory() as folder:
        output = Path(folder, "adapted")
        start = time.perf_counter()
        peak = harness.stage("adapt", collection=collection, base=encoder, dense=dense, output=output)
        seconds = time.perf_counter() - start
        manifests = sorted(Path(folder).rglob("*manifest.json"), key=lambda path: path.stat().st_mtime)
        steps = {str(path.relative_to(folder)): json.loads(path.read_text())["stats"]["seconds"] for path in manifests}
    return {"seconds": seconds, "peak": peak, "steps": steps}


def main() -> None:
    arguments = harness.parser("Measure how long an adaptation takes.", "adapt")
    arguments.add_argument("--dense", default="minilm", help="the teacher: a name in encoders/, or a checkpoint folder")
    arguments.add_argument("--minutes", type=float, default=4.0, help="the target")
    args = arguments.parse_args()
    measure = partial(adapt, args.collection, args.encoder, args.dense)
    results = harness.rounds(args.repeats, {"adapt": measure})["adapt"]
    minutes = harness.middle(results, "seconds") / 60
    steps = [[name, f"{harness.middle([r['steps'] for r in results], name):.0f}"] for name in results[0]["steps"]]
    harness.show(
        f"Adaptation to {args.collection}, medians of {args.repeats}",
        ["step", "seconds"],
        [*steps, ["all", f"{60 * minutes:.0f}"]],
    )
    harness.target(f"at most {args.minutes:g} minutes", f"{minutes:.1f}", minutes <= args.minutes)


if __name__ == "__main__":
    main()
