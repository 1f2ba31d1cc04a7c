"""How long an adaptation takes, in minutes and by step.

`cai-pyserini adapt` is run as a process of its own, from nothing: it also encodes all documents, which a run
folder has anyway. The line of the result, adapted/manifest.json, is the choice of weights.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import harness


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--dense", default="minilm", help="the teacher: a name in encoders/, or a checkpoint folder")
    parser.add_argument("--minutes", type=float, default=4.0, help="the aim")
    args = parser.parse_args()

    def adapt() -> harness.Result:
        with TemporaryDirectory() as folder:
            options = {"collection": args.collection, "base": args.encoder, "dense": args.dense}
            result = harness.stage("adapt", **options, output=f"{folder}/adapted")
            made = sorted(Path(folder).rglob("*manifest.json"), key=lambda path: path.stat().st_mtime)
            steps = {str(path.relative_to(folder)): json.loads(path.read_text())["stats"]["seconds"] for path in made}
        return steps | {"all": result["seconds"]}

    results = harness.rounds(args.repeats, {"adapt": adapt})["adapt"]
    rows = [(name, f"{harness.middle(results, name):.0f}") for name in results[0]]
    harness.show(f"Adaptation to {args.collection}, medians of {args.repeats}", ("step", "seconds"), rows)
    print(f"\n{harness.middle(results, 'all') / 60:.1f} minutes; at most {args.minutes:g} is the aim")


if __name__ == "__main__":
    main()
