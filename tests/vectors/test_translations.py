"""Translated words, on pairs of texts whose translations can be read off."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from cai_pyserini.core.config import Bm25Parameters
from cai_pyserini.vectors.bm25 import WordWeighting
from cai_pyserini.vectors.translations import translations

# Each pair has several words on both sides; only together do they tell which translates which.
PAIRS = [
    (["haus", "blau"], ["blue", "house"]),
    (["haus", "rot"], ["red", "house"]),
    (["buch", "rot"], ["red", "book"]),
    (["buch", "blau"], ["blue", "book"]),
    (["hausbuch"], ["house", "book"]),
]


def degrees(pairs: list[tuple[list[str], list[str]]], own: list[str]) -> dict[tuple[str, str], float]:
    columns = {word: column for column, word in enumerate(own)}
    found = translations(pairs, columns, len(own)).tocoo()
    names = [*columns]
    entries = zip(found.row.tolist(), found.col.tolist(), found.data.tolist(), strict=True)
    return {(names[row], names[column]): value for row, column, value in entries}


def test_words_that_occur_together_translate_each_other() -> None:
    found = degrees(PAIRS, ["blue", "house", "red", "book"])
    best = {own: max((value, f) for (e, f), value in found.items() if e == own)[1] for own, _ in found}
    assert best == {"blue": "blau", "house": "haus", "red": "rot", "book": "buch"}
    assert all(0.01 <= value <= 1 for value in found.values())
    assert {own for own, foreign in found if foreign == "hausbuch"} == {"house", "book"}  # a compound


def test_words_without_a_column_have_no_translations() -> None:
    found = degrees([*PAIRS, (["grün"], ["green"]), ([], ["house"])], ["house"])
    assert {own for own, _ in found} == {"house"} and ("house", "grün") not in found
    assert degrees([(["grün"], ["green"])], ["house"]) == {}


def test_a_translation_can_have_the_form_of_an_own_word() -> None:
    """Its column is shared, so that a query finds both."""
    columns = {"gift": 0, "poison": 1}
    found = translations([(["gift"], ["poison"]), (["gabe"], ["gift"])], columns, 2).toarray()
    assert columns == {"gift": 0, "poison": 1, "gabe": 2}
    assert found[1, 0] == pytest.approx(1, abs=0.2) and found[0, 2] == pytest.approx(1, abs=0.2)
    assert found[0, 0] == found[0, 1] == found[1, 1] == found[1, 2] == 0


def test_weights_are_bm25_of_expected_counts() -> None:
    counts = csr_matrix(np.array([[2, 0], [1, 1], [0, 3]], np.float32))
    table = csr_matrix(np.array([[0, 0, 0.5], [0.25, 0, 0.5]], np.float32))
    weighting = WordWeighting.of([counts], 3, Bm25Parameters(1.2, 0.0), table)
    found = weighting.weights(counts).toarray()
    expected = counts.toarray() @ table.toarray()
    frequencies = np.array([2, 2]) @ table.toarray()
    idf = np.log(1 + (3 - frequencies + 0.5) / (frequencies + 0.5))
    translated = idf * expected / (expected + 1.2)
    own = np.log(1 + 1.5 / 2.5) * counts.toarray() / (counts.toarray() + 1.2)
    assert found[:, 2] == pytest.approx(translated[:, 2])
    assert found[:, 1] == pytest.approx(own[:, 1])
    assert found[:, 0] == pytest.approx(np.maximum(own[:, 0], translated[:, 0])) and found[2, 0] > 0
