"""Exported encoders in sentence-transformers: equal vectors of queries and documents."""

from pathlib import Path

import numpy as np
import pytest

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.text import normalized
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.models.idf import Idf
from cai_pyserini.vectors.queries import Representation, encode_queries

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def index(run_folder: Path) -> Path:
    return run_folder / "indexes" / "splade-idf"


@pytest.fixture(scope="module")
def texts(tiny: Path) -> list[str]:
    """Queries, and documents as queries."""
    folder = BeirFolder(tiny, "tiny")
    more = ["COVID-19: what's an 'Anti-Body' (IgG)?", "fever", "naïve café — 5 µg/ml", "発熱"]
    return [*folder.topics("test").values(), *map(normalized, more)] + [
        document.contents for document in folder.documents()
    ]


@pytest.fixture
def sentence_transformers(index: Path, tmp_path: Path):
    """Export and load."""
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SparseEncoder

    from cai_pyserini.plugin.sentence_transformers import export_encoder

    def export(query: Representation, **changes: object) -> tuple[SparseEncoder, list[str]]:
        config = load_encoder(str(index)).replace(**changes)
        stats = export_encoder(config, tmp_path / query, query).stats
        return SparseEncoder(str(tmp_path / query), device="cpu"), stats["loses"]

    return export


def test_sentence_transformers_with_bags_of_words(sentence_transformers, run_folder: Path, texts: list[str]) -> None:
    """Documents have SPLADE's weights; query tokens have the IDF as static weights."""
    model, loses = sentence_transformers("bow")
    encoder = EncoderModel(load_encoder("splade-tiny"), "cpu", "float32")
    found = model.encode_document(texts, convert_to_sparse_tensor=False).numpy()
    np.testing.assert_allclose(found, encoder.load("documents").encode(texts, 256).toarray(), atol=2e-5)
    found = model.encode_query(texts, convert_to_sparse_tensor=False).numpy()
    bags = encode_queries(encoder, texts, "bow").toarray()
    np.testing.assert_allclose(found, np.minimum(bags, 1) * Idf.load(run_folder / "idf").weights(1.0), rtol=1e-6)
    assert bags.max() > 1 and any("a token counts once" in loss for loss in loses)


def test_bags_of_words_are_truncated_like_ours(sentence_transformers) -> None:
    words = "one two three four five six seven eight"
    model, _ = sentence_transformers("bow", max_query_length=6, idf=None)
    found = model.encode_query([words], convert_to_sparse_tensor=False).numpy()
    expected = encode_queries(EncoderModel(load_encoder("splade-tiny")), [words], "bow", 6).toarray()
    assert expected.sum() == 4
    np.testing.assert_array_equal(found, expected)


def test_pruning_is_listed_as_lost(sentence_transformers) -> None:
    _, loses = sentence_transformers("splade", keep_mass=0.9, keep_query_mass=0.6, rescore=100)
    assert "static pruning: documents keep all their terms" in loses
    assert any("IDF weights of documents" in loss for loss in loses)
    assert not [sentence for sentence in loses if "keep_query_mass" in sentence or "rescore" in sentence]


@pytest.mark.parametrize("name, value", [("binary_queries", True), ("expand_queries", False)])
def test_queries_the_format_cannot_encode_are_refused(sentence_transformers, name: str, value: bool) -> None:
    with pytest.raises(CaiError, match=f"has a setting {name}, which sentence-transformers has no module for"):
        sentence_transformers("splade", **{name: value})


def test_binary_bags_of_words_lose_nothing(sentence_transformers) -> None:
    model, loses = sentence_transformers("bow", binary_queries=True, idf=None)
    found = model.encode_query(["fever of fever"], convert_to_sparse_tensor=False).numpy()
    assert sorted(found[found != 0].tolist()) == [1, 1] and not any("counts once" in loss for loss in loses)


@pytest.mark.parametrize(
    "name, changes, message",
    [
        ("joint", {}, "sentence-transformers would leave the words of BM25 out of queries"),
        ("minilm", {}, "is a dense encoder: only SPLADE encoders are exported"),
        ("splade-tiny", {"max_document_length": 1024}, "has 512 positions, too few for max_document_length 1024"),
    ],
)
def test_an_encoder_that_the_format_cannot_hold_is_refused(
    name: str, changes: dict[str, object], message: str, run_folder: Path, tmp_path: Path
) -> None:
    from cai_pyserini.plugin.sentence_transformers import export_encoder

    spec = str(run_folder / "indexes" / "joint-splade-idf") if name == "joint" else name
    with pytest.raises(CaiError, match=message):
        export_encoder(load_encoder(spec).replace(**changes), tmp_path / "x")
    assert not (tmp_path / "x").exists()
