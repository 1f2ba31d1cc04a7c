"""AdaptationData and the training file that is made from it, with real encoders."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from cai_pyserini.core import artifact
from cai_pyserini.core.errors import CaiError
from cai_pyserini.trainer.adapt import steps
from cai_pyserini.trainer.adaptation_data import AdaptationData, write_examples
from cai_pyserini.trainer.settings import AdaptSettings
from tests.conftest import DATA, json_lines
from tests.trainer.conftest import adaptation_data, in_passages

pytestmark = pytest.mark.slow


def test_examples_have_their_source_and_others(tiny: Path, tmp_path: Path) -> None:
    vectors = tmp_path / "vectors"
    lines = json_lines(write_examples(adaptation_data(tiny, vectors), tmp_path / "x.jsonl"))
    assert len(lines) > 10
    for line in lines:
        words = {*line["positive"].replace(",", "").replace(".", "").split(), *line["positive"].split()}
        assert set(line["query"].split()) <= words
        assert len({line["positive"], *line["negatives"]}) == 5
        assert "margins" not in line
    assert json_lines(write_examples(adaptation_data(tiny, vectors), tmp_path / "y.jsonl")) == lines
    assert 1 <= len(json_lines(write_examples(adaptation_data(tiny, vectors, 3, 2), tmp_path / "z.jsonl"))) <= 3


def test_margins_are_the_mixtures_on_the_scale_of_splade(with_dense: AdaptationData, tmp_path: Path) -> None:
    data = with_dense
    first = json_lines(write_examples(data, tmp_path / "x.jsonl"))[0]
    number = next(n for n in data.train if data.pseudo_queries[n].text == first["query"])
    passages = [" ".join(text.split()) for text in data.contents]  # each is short
    rows = [passages.index(text) for text in (first["positive"], *first["negatives"])]
    best = data.mixture.best[-1, number]
    scores, best_scores = (
        data.mixture.scores(np.array([number]), documents, [0.5, 1, 2])[0] for documents in (rows, best)
    )
    np.testing.assert_allclose(first["margins"], data.spread * (scores[0] - scores[1:]) / best_scores.std(), atol=1e-3)


def test_held_out_sources_train_nothing(with_dense: AdaptationData) -> None:
    held_out, train = (set(with_dense.sources[numbers]) for numbers in (with_dense.held_out, with_dense.train))
    assert held_out and not held_out & train


def test_passages_and_copies_of_a_held_out_document_train_nothing(tmp_path: Path) -> None:
    """Nor is any passage of a source, or of its copy, a negative of a query."""
    data = in_passages(tmp_path)

    def documents(numbers: Iterable[int]) -> set[str]:
        """The original documents of passages; the copy c0 counts as d0."""
        return {data._records[number].id.partition("#")[0].replace("c", "d") for number in numbers}

    count = data._drawn_queries[1]
    held_out = data.sources[:count].tolist()
    assert len({data.origins[number] for number in held_out}) == len(set(held_out)) == 2  # one passage of each
    assert not documents(held_out) & documents(data.sources[count:])
    lines = json_lines(write_examples(data, tmp_path / "x.jsonl"))
    numbers = {" ".join(text.split()): number for number, text in enumerate(data.contents)}
    for line in lines:
        positive, *negatives = (numbers[text] for text in (line["positive"], *line["negatives"]))
        assert not documents([positive]) & documents(negatives)
        positive_id, *negative_ids = line["ids"]
        assert positive_id not in negative_ids and positive_id == str(data.equivalents(positive)[0])
    assert len(lines) > 10


def test_of_a_large_collection_a_sample_is_used(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its vectors come from the collection's if these exist."""
    folder = tmp_path / "vectors"
    full = adaptation_data(tiny, folder, dense=True)
    vectors = dict(zip(full.contents, full.vector_systems[1].documents, strict=True))
    monkeypatch.setattr("cai_pyserini.trainer.adaptation_data.SAMPLE", 7)
    sample, other = adaptation_data(tiny, folder, dense=True), adaptation_data(tiny, tmp_path / "other")
    splade, dense = sample.vector_systems
    assert splade.documents.shape[0] == len(sample.contents) == 7
    np.testing.assert_array_equal(dense.documents, [vectors[text] for text in sample.contents])
    assert {path.name for path in folder.iterdir()} == {"documents", "dense-documents", "sample"}
    assert other.contents == sample.contents and other.mixture.best.max() < 7
    assert {path.name for path in (tmp_path / "other").iterdir()} == {"sample", "sample-documents"}
    stats = artifact.require(folder / "sample", "adapt: sample").stats
    assert stats["documents"] == 7 and stats["of"] == 12


def test_too_few_documents_for_negatives_are_refused(tiny: Path, tmp_path: Path) -> None:
    """An empty file would stop the following trainings."""
    (tmp_path / "four").mkdir()
    with (tiny / "corpus.jsonl").open() as corpus:
        (tmp_path / "four" / "corpus.jsonl").write_text("".join(islice(corpus, 4)))
    data = adaptation_data(tmp_path / "four", tmp_path / "vectors")
    assert len(data.train)
    with pytest.raises(CaiError, match="collection four yields no training examples: its documents are too few"):
        write_examples(data, tmp_path / "x.jsonl")


def test_a_collection_without_queries_is_refused(short: Path, tmp_path: Path) -> None:
    with pytest.raises(CaiError, match="collection short yields no training examples"):
        write_examples(adaptation_data(short, tmp_path / "vectors"), tmp_path / "x.jsonl")


def test_questions_are_english_and_queries_are_of_words_between_spaces(tmp_path: Path) -> None:
    german = adaptation_data(DATA / "de.yaml", tmp_path / "de", dense=True)
    assert {query.kind for query in german.pseudo_queries} == {"title", "span", "phrases", "dropped"}
    japanese = adaptation_data(DATA / "ja.yaml", tmp_path / "ja", dense=True)
    assert japanese.pseudo_queries == []
    settings = AdaptSettings(
        collection=str(DATA / "ja.yaml"), base="splade-tiny", output=tmp_path / "out", device="cpu"
    )
    with pytest.raises(CaiError, match=r"collection ja: .* which it cannot do for 'ja', only for ar, da, de, "):
        steps(settings)
