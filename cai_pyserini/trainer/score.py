"""A teacher's margins for a training file: what Margin-MSE distils (Iida & Okazaki 2022, Appendix A).

margin = S_CE(query, positive) - S_CE(query, negative),   S_CE the score of a cross-encoder
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cai_pyserini import artifact, cli
from cai_pyserini.artifact import file_digest
from cai_pyserini.config import checkpoint_digest, checkpoint_folder, load_encoder
from cai_pyserini.trainer import settings
from cai_pyserini.trainer.data import read
from cai_pyserini.trainer.parts import in_parts

PART = 256  # lines


@dataclass(frozen=True)
class Settings:
    """What scoring can be told."""

    data: str = field(metadata={"help": 'JSONL of {"query", "positive", "negatives"}, .gz or not'})
    cross_encoder: str = field(
        metadata={"help": "checkpoint folder or hub id, such as cross-encoder/ms-marco-MiniLM-L-6-v2"}
    )
    output: str = field(metadata={"help": "JSONL file to write"})
    device: str = field(default="auto", metadata={"help": "auto, or cpu"})


def score(given: Settings) -> Path:
    """Write the training file with margins. An interrupted run goes on in `.<output>.parts`."""
    checkpoint = checkpoint_folder(load_encoder(given.cross_encoder))
    output = Path(given.output)
    recipe = {
        "stage": "score",
        "format": 1,
        "data": file_digest(Path(given.data)),
        "checkpoint": checkpoint_digest(checkpoint),
    }
    if artifact.is_fresh(output, recipe):
        return output
    parts = output.with_name(f".{output.name}.parts")
    with (
        cli.progress(range(0), None, "score", "pair") as bar,
        artifact.building(output, recipe, folder=False) as (partial, facts),
        partial.open("w", encoding="utf-8") as file,
    ):
        count = 0
        lines = (line for _, line in read(given.data))
        for record in in_parts(lines, PART, parts, recipe, _scorer(checkpoint, given.device, bar.update)):
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            count += 1
        facts["lines"] = count
    artifact.remove(parts)
    return output


def _scorer(
    checkpoint: Path, device: str, done: Callable[[int], object]
) -> Callable[[int, tuple[dict[str, Any], ...]], Iterator[dict[str, Any]]]:
    """A function that adds margins to a part of the lines; the model is loaded for the first."""
    loaded: list[Any] = []

    def score(_: int, part: tuple[dict[str, Any], ...]) -> Iterator[dict[str, Any]]:
        from cai_pyserini.rerank import CrossEncoder

        if not loaded:
            loaded.append(CrossEncoder(checkpoint, device))
        pairs = [(line["query"], text) for line in part for text in (line["positive"], *line["negatives"])]
        scores = iter(loaded[0].score([query for query, _ in pairs], [text for _, text in pairs], done).tolist())
        for line in part:
            positive = next(scores)
            yield line | {"margins": [round(positive - next(scores), 4) for _ in line["negatives"]]}

    return score


def main() -> None:
    given = settings.parse(
        Settings,
        "Add a cross-encoder's margins to a training file.",
        "python -m cai_pyserini.trainer.score --data negatives.jsonl "
        "--cross-encoder cross-encoder/ms-marco-MiniLM-L-6-v2 --output train.jsonl",
    )
    print(f"{given.output}: {artifact.require_manifest(score(given), 'score')['lines']:,} lines")


if __name__ == "__main__":
    cli.run(main)
