"""Examples and what they are made from, with real encoders."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from cai_pyserini.adapt.examples import write_examples
from cai_pyserini.adapt.material import Material
from cai_pyserini.core import artifact
from cai_pyserini.core.config import IndexConfig, load_encoder, load_index_config
from cai_pyserini.core.errors import CaiError
from tests.conftest import json_lines


def material(collection: IndexConfig, folder: Path, queries: int = 100, seed: int = 1, dense: bool = False) -> Material:
    teacher = load_encoder("minilm") if dense else None
    return Material(collection, load_encoder("splade-tiny"), teacher, folder, queries, seed, "cpu")


@pytest.mark.slow
def test_examples_have_their_source_and_others(tiny: Path, tmp_path: Path) -> None:
    config = load_index_config(str(tiny))
    lines = json_lines(write_examples(material(config, tmp_path / "vectors"), tmp_path / "x.jsonl"))
    assert len(lines) > 10
    for line in lines:
        assert set(line["query"].split()) <= set(line["positive"].replace(",", "").replace(".", "").split()) | set(
            line["positive"].split()
        )
        assert len({line["positive"], *line["negatives"]}) == 5
        assert "margins" not in line
    again = write_examples(material(config, tmp_path / "vectors"), tmp_path / "y.jsonl")
    assert json_lines(again) == lines
    other = write_examples(material(config, tmp_path / "vectors", 3, 2), tmp_path / "z.jsonl")
    assert 1 <= len(json_lines(other)) <= 3


@pytest.mark.slow
def test_margins_are_the_mixtures_on_the_scale_of_splade(tiny: Path, tmp_path: Path) -> None:
    made = material(load_index_config(str(tiny)), tmp_path / "vectors", dense=True)
    first = json_lines(write_examples(made, tmp_path / "x.jsonl"))[0]
    number = next(n for n in made.train if made.pseudo_queries[n].text == first["query"])
    passages = [" ".join(text.split()) for text in made.contents]  # each is short
    rows = [passages.index(text) for text in (first["positive"], *first["negatives"])]
    best = made.mixture.best[-1, number]
    scores, of_best = (made.mixture.scores(np.array([number]), documents, [0.5, 1, 2])[0] for documents in (rows, best))
    np.testing.assert_allclose(first["margins"], made.spread * (scores[0] - scores[1:]) / of_best.std(), atol=1e-3)


@pytest.mark.slow
def test_held_out_sources_train_nothing(tiny: Path, tmp_path: Path) -> None:
    made = material(load_index_config(str(tiny)), tmp_path / "vectors")
    sources = [{made.pseudo_queries[number].document for number in numbers} for numbers in (made.held_out, made.train)]
    assert sources[0] and not sources[0] & sources[1]


@pytest.mark.slow
def test_of_a_large_collection_a_sample_is_used(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cai_pyserini.adapt.material.SAMPLE", 7)
    made = material(load_index_config(str(tiny)), tmp_path / "vectors")
    assert len(made.contents) == 7 and made.mixture.best.max() < 7
    stats = artifact.require(tmp_path / "vectors" / "sample", "adapt: sample").stats
    assert stats["documents"] == 7 and stats["of"] == 12


@pytest.mark.slow
def test_vectors_of_a_sample_are_those_of_the_collection(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, folder = load_index_config(str(tiny)), tmp_path / "vectors"
    whole = material(config, folder, dense=True)
    vectors = dict(zip(whole.contents, whole.products[1].documents, strict=True))
    monkeypatch.setattr("cai_pyserini.adapt.material.SAMPLE", 7)
    sample = material(config, folder, dense=True)
    splade, dense = sample.products
    assert splade.documents.shape[0] == len(sample.contents) == 7
    np.testing.assert_array_equal(dense.documents, [vectors[text] for text in sample.contents])
    assert {path.name for path in folder.iterdir()} == {"documents", "dense-documents", "sample"}


@pytest.mark.slow
def test_too_few_documents_for_negatives_are_refused(tiny: Path, tmp_path: Path) -> None:
    """An empty file stopped the training after it, when the projection had been learned."""
    with (tiny / "corpus.jsonl").open() as corpus:
        (tmp_path / "corpus.jsonl").write_text("".join(islice(corpus, 4)))
    made = material(IndexConfig(name="four", source=str(tmp_path)), tmp_path / "vectors")
    assert len(made.train)
    with pytest.raises(CaiError, match="collection four makes no training examples: its documents are too few"):
        write_examples(made, tmp_path / "x.jsonl")


def test_a_collection_without_queries_is_refused(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"_id": "1", "text": "two words"}\n{"_id": "2", "text": "more words"}\n')
    made = material(IndexConfig(name="short", source=str(tmp_path)), tmp_path / "vectors")
    with pytest.raises(CaiError, match="collection short makes no training examples"):
        write_examples(made, tmp_path / "x.jsonl")
