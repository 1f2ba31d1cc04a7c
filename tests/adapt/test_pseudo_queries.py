"""Pseudo queries and their negatives, with real encoders."""

import random
from pathlib import Path

import numpy as np
import pytest

from cai_pyserini.adapt.pseudo_queries import PseudoQueries, margins, pseudo_queries
from cai_pyserini.core.config import IndexConfig, load_encoder, load_index_config
from cai_pyserini.core.errors import CaiError
from tests.conftest import json_lines


def test_pseudo_queries_are_titles_and_sentences() -> None:
    titles = ["A title", "", "Other"]
    texts = ["Too short. One sentence of five words. Nor this.", "Another sentence of five words?", ""]
    found = list(pseudo_queries(titles, texts, random.Random(0)))
    assert found == [
        (0, "A title"), (0, "One sentence of five words."), (1, "Another sentence of five words?"), (2, "Other")
    ]  # fmt: skip


@pytest.mark.slow
def test_examples_have_their_document_and_others(tiny: Path, tmp_path: Path) -> None:
    config, encoder = load_index_config(str(tiny)), load_encoder("splade-tiny")
    lines = json_lines(PseudoQueries(config, encoder, tmp_path / "x.jsonl", 100, 1, "cpu").write())
    assert len(lines) > 10
    for line in lines:
        assert line["query"] in line["positive"]
        assert len({line["positive"], *line["negatives"]}) == 5
    again = PseudoQueries(config, encoder, tmp_path / "y.jsonl", 100, 1, "cpu").write()
    assert json_lines(again) == lines
    other = PseudoQueries(config, encoder, tmp_path / "z.jsonl", 3, 2, "cpu").write()
    assert len(json_lines(other)) <= 3


def test_a_collection_without_sentences_is_refused(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"_id": "1", "text": "three words only"}\n')
    config = IndexConfig(name="short", source=str(tmp_path))
    with pytest.raises(CaiError, match="collection short makes no training examples: it has no title"):
        PseudoQueries(config, load_encoder("splade-tiny"), tmp_path / "x.jsonl", 9, 1, "cpu").write()


def test_the_margin_of_a_teacher_is_of_standardized_scores() -> None:
    """Two found documents: scores 1 and 3 are -1 and 1 deviation from their mean, whatever their scale."""
    scores = [np.array([1.0, 3.0, 99.0]), np.array([10.0, 30.0, 0.0]), np.array([0.3, 0.1, 0.0])]
    # of document 1 less document 0: 2 + 2 from BM25 and SPLADE, 2 * -2 from the teacher
    assert margins(scores, [0, 1], 1, [0]) == [pytest.approx(0, abs=1e-4)]
    assert margins([*scores[:2], -scores[2]], [0, 1], 1, [0]) == [pytest.approx(3 * 8, abs=1e-4)]
