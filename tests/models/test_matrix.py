"""Cells of docs/reference/models.md, measured."""

import pytest

from tests.models.kinds import KINDS
from tests.models.matrix import COLUMNS, BuiltKinds, cell, page_cells

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("java")]


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> BuiltKinds:
    return BuiltKinds(tmp_path_factory.mktemp("kinds"))


# The other columns follow from the vectors, except where a kind has other files or other queries.
WHOLE_ROWS = [
    *("SPLADE with prompts", "SPLADE, Japanese BERT", "queries without a model, cut", "SPLADE, two models"),
    *("queries without a model, idf.json", "checkpoint, settings", "query_checkpoint", "query_weights"),
    *("binary_queries", "expand_queries: false"),
    *("dense, cls with prompts", "dense, two models", "token vectors of model2vec"),
]


@pytest.mark.parametrize("name", KINDS)
def test_a_row_is_as_measured(name: str, kinds: BuiltKinds) -> None:
    columns = [*COLUMNS] if name in WHOLE_ROWS else ["vectors"]
    expected = {column: page_cells()[name, column] for column in columns}
    assert {column: cell(kinds, name, column) for column in columns} == expected


def test_the_page_has_every_kind() -> None:
    assert [*dict.fromkeys(name for name, _ in page_cells())] == [*KINDS]
