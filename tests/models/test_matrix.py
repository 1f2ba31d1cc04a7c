"""Each cell of docs/reference/models.md, measured."""

import pytest

from tests.models.kinds import KINDS
from tests.models.matrix import COLUMNS, BuiltKinds, cell, page_cells

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("java")]


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> BuiltKinds:
    return BuiltKinds(tmp_path_factory.mktemp("kinds"))


@pytest.mark.parametrize("name", KINDS)
def test_a_row_is_as_measured(name: str, kinds: BuiltKinds) -> None:
    expected = {column: page_cells()[name, column] for column in COLUMNS}
    assert {column: cell(kinds, name, column) for column in COLUMNS} == expected


def test_the_page_has_every_kind() -> None:
    assert [*dict.fromkeys(name for name, _ in page_cells())] == [*KINDS]
