"""Forward indexes against sums by hand."""

from pathlib import Path

import numpy as np
import pytest

from cai_pyserini.core.errors import CaiError
from cai_pyserini.indexes.forward_index import ENTRIES, IDS, STARTS, ForwardIndex, merge_forward, writing_forward
from cai_pyserini.vectors.json_vectors import DELIMITER

Documents = dict[str, dict[str, int]]
ODD = {"\u00a0x": 3, "β": 2, "a|3": 1, "z": 1023}
DOCUMENTS: Documents = {
    "none": {},
    "odd": ODD,
    "b": {"x": 5, "z": 1},
    "also none": {},
    "a": {"x": 5, "y": 7},
    "last": {},
}


def forward_index(folder: Path, *parts: Documents, batch: int = 2) -> Path:
    """The folder of the forward index of some parts, each written in batches of documents."""
    folder.mkdir()
    for number, documents in enumerate(parts):
        with writing_forward(folder / str(number)) as add:
            contents = [" ".join(f"{t}{DELIMITER}{i}" for t, i in vector.items()) for vector in documents.values()]
            for start in range(0, len(documents), batch):
                add([*documents][start : start + batch], contents[start : start + batch])
    merge_forward([folder / str(number) for number in range(len(parts))], folder)
    return folder


def test_scores_are_dot_products(tmp_path: Path) -> None:
    index = ForwardIndex(forward_index(tmp_path / "index", DOCUMENTS))
    query = {"x": 10, "\u00a0x": 7, "absent": 5, "z": 2, "zz": 1}
    expected = [0, 7 * 3 + 2 * 1023, 52, 0, 50, 0]
    for numbers in ([*range(6)], [4, 1, 4, 0], [3], [0, 3, 5], []):
        found = index.scores(query, np.array(numbers, np.int64))
        assert found.tolist() == [expected[number] for number in numbers] and found.dtype == np.float32
    assert not index.scores({"absent": 1}, np.arange(6)).any()  # nothing is left of the query before


@pytest.mark.parametrize("impact, size", [(1023, 4), (2**30 - 1, 4), (2**30, 8), (2**31 - 1, 8)])
def test_entries_are_as_wide_as_terms_and_impacts_need(impact: int, size: int, tmp_path: Path) -> None:
    folder = forward_index(tmp_path / "index", {"a": {"x": impact, "y": 1}, "b": {"z": impact}})  # 3 terms: 2 bits
    assert np.load(folder / ENTRIES).itemsize == size
    found = ForwardIndex(folder).scores({"x": 1, "z": 2}, np.arange(2))
    assert (found == np.float32([impact, 2 * impact])).all()


def test_the_best_of_some_documents(tmp_path: Path) -> None:
    index = ForwardIndex(forward_index(tmp_path / "index", DOCUMENTS))
    query, every = {"x": 2, "z": 1}, np.array([4, 2, 1, 0])
    ids, scores = ["odd", "b", "a", "none"], [1023, 11, 10, 0]
    for hits in range(1, 6):
        assert index.best(query, every, hits) == (ids[:hits], scores[:hits])
    assert index.best({"x": 2}, every, 3) == (["a", "b", "none"], [10, 10, 0])
    assert index.best({"x": 2}, every, 1) == (["a"], [10])  # of two with the same score
    assert index.best(query, every[:0], 3) == ([], [])


@pytest.mark.parametrize("name", [ENTRIES, STARTS, IDS])
@pytest.mark.parametrize("keep", [None, 0, 150])
def test_a_damaged_index_is_refused(name: str, keep: int | None, tmp_path: Path) -> None:
    """Files that are missing, empty or cut off, as after a copy that was interrupted."""
    many = {f"d{n}": {f"t{n}": 1} for n in range(99)}
    folder = forward_index(tmp_path / "index", many)
    file = folder / name
    if keep is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CaiError, match=r"index: .* forward index .* delete the index$"):
        ForwardIndex(folder)


def test_an_index_without_any_term(tmp_path: Path) -> None:
    index = ForwardIndex(forward_index(tmp_path / "index", {"a": {}}))
    assert index.scores({"x": 3}, np.arange(1)).tolist() == [0]
