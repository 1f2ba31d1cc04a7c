"""Work in batches that are kept."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cai_pyserini.trainer.batches import in_batches


def test_an_interruption_costs_one_batch(tmp_path: Path) -> None:
    made: list[int] = []

    def process(number: int, items: Sequence[str]) -> Iterator[dict[str, str]]:
        if number == 2 and 2 not in made and len(made) < 3:
            made.append(2)
            yield {"text": "half a batch"}
            raise InterruptedError
        made.append(number)
        yield from ({"text": item.upper()} for item in items)

    def run(recipe: dict[str, str]) -> str:
        return "".join(record["text"] for record in in_batches("abcdefg", 2, tmp_path / "x", recipe, process))

    with pytest.raises(InterruptedError):
        run({"stage": "a"})
    assert run({"stage": "a"}) == "ABCDEFG"
    assert made == [0, 1, 2, 2, 3]
    assert run({"stage": "a"}) == "ABCDEFG"
    assert made == [0, 1, 2, 2, 3]
    assert run({"stage": "b"}) == "ABCDEFG"  # another recipe
    assert made == [0, 1, 2, 2, 3, 0, 1, 2, 3]
