"""Each cell of docs/reference/models.md, measured."""

import pytest

from tests.models.kinds import KINDS
from tests.models.matrix import COLUMNS, Workshop, cell, written

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("java")]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("kinds"))


@pytest.mark.parametrize("name", KINDS)
def test_a_row_is_as_measured(name: str, shop: Workshop) -> None:
    expected = {column: written()[name, column] for column in COLUMNS}
    assert {column: cell(shop, name, column) for column in COLUMNS} == expected


def test_the_page_has_every_kind() -> None:
    assert [*dict.fromkeys(name for name, _ in written())] == [*KINDS]
