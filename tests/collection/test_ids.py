"""Duplicate detection."""

from cai_pyserini.collection.ids import Ids


def test_ids_are_remembered_after_merging() -> None:
    ids = Ids()
    count = (1 << 17) + 3  # merged twice, and three recent ones
    assert not any(ids.add(f"d{i}") for i in range(count))
    met = [0, (1 << 16) - 1, 1 << 16, (1 << 17) - 1, 1 << 17, count - 1]
    assert all(ids.add(f"d{i}") for i in met)
    assert not ids.add(f"d{count}")


def test_an_id_is_new_once() -> None:
    ids = Ids()
    assert [ids.add(id) for id in ("a", "b", "a", "", "b", "")] == [False, False, True, False, True, True]
