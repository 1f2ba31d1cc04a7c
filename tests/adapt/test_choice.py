"""What judges candidates: agreement with the mixture, or with the sources of queries."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from cai_pyserini.adapt.choice import Choice
from cai_pyserini.adapt.material import Material
from cai_pyserini.adapt.mixture import Mixture, Products


def choice(dense: bool) -> Choice:
    """Two judges and fourteen documents, which BM25 scores 1 to 14 and, for the second judge, 14 to 1."""
    scores = np.array([np.arange(1.0, 15), np.arange(14.0, 0, -1)], np.float32)
    mixture = Mixture([Products(scores, np.eye(14, dtype=np.float32))], [1.0], 2, 14)
    queries = [SimpleNamespace(document=13, text="a"), SimpleNamespace(document=2, text="b")]
    material = SimpleNamespace(
        mixture=mixture, dense=dense or None, pseudo_queries=queries, held_out=np.array([0, 1]), contents=[""] * 14
    )
    return Choice(cast(Material, cast(Any, material)))


def test_the_mixtures_own_ranking_agrees_and_its_reverse_does_not() -> None:
    judges = choice(dense=True)
    scores = judges.material.mixture.systems[0].scores(judges.queries, judges.documents)
    assert judges.ndcg(scores) == pytest.approx(1)
    # of the reverse, the first four have no grade, then come grades 1 to 6
    grades, discounts = np.arange(10, 0, -1), 1 / np.log2(np.arange(2, 12))
    reverse = (np.arange(1, 7) * discounts[4:]).sum() / (grades * discounts).sum()
    assert judges.ndcg(-scores) == pytest.approx(reverse)


def test_without_a_dense_encoder_only_sources_count() -> None:
    """They are first for the first judge, and third for the second."""
    judges = choice(dense=False)
    scores = judges.material.mixture.systems[0].scores(judges.queries, judges.documents)
    assert judges.ndcg(scores) == pytest.approx((1 + 1 / np.log2(4)) / 2)


def test_a_joint_score_balances_both() -> None:
    """SPLADE that scores nothing leaves BM25's ranking; SPLADE on another scale weighs as much as BM25."""
    judges = choice(dense=True)
    bm25 = judges.material.mixture.systems[0].scores(judges.queries, judges.documents)
    assert judges.joint(1000 * bm25) == pytest.approx(1)
    assert judges.joint(-1000 * bm25 + 1e-3 * np.arange(14)) < 1
