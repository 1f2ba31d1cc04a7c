"""Query generation with a small model with random weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.collections.contract import Document
from cai_pyserini.collections.readers import open_collection
from cai_pyserini.core import artifact
from cai_pyserini.core.config import load_index_config
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.settings import build
from cai_pyserini.trainer import generate
from cai_pyserini.trainer.settings import GenerateSettings
from tests.conftest import json_lines


def settings(tiny: Path, generator: Path, output: Path, **changes: object) -> GenerateSettings:
    values = {"collection": str(tiny), "generator": str(generator), "output": output}
    return build(GenerateSettings, values | {"max_query_length": 6, "device": "cpu"} | changes, "")


@pytest.fixture(scope="module")
def generated(tiny: Path, generator: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate.generate(settings(tiny, generator, tmp_path_factory.mktemp("generated") / "queries"))


@pytest.mark.slow
def test_generated_queries_are_a_collection(tiny: Path, generated: Path) -> None:
    collection = open_collection(load_index_config(str(generated)))
    documents = {id: text.strip() for id, text in BeirFolder(tiny, "tiny").documents()}
    assert {id: text.strip() for id, text in collection.documents()} == documents
    qrels = collection.qrels("train")
    stats = artifact.require(generated, "trainer generate").stats
    assert len(collection.topics("train")) == len(qrels) == stats["queries"]
    assert stats["documents"] == 12
    assert 24 < len(qrels) <= 36  # three per document, without repetitions
    assert all(query.rpartition("-")[0] in judged and set(judged.values()) == {1} for query, judged in qrels.items())


@pytest.mark.slow
def test_a_sample_of_the_documents_can_be_repeated_and_resumed(
    tiny: Path, generator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interruption costs one batch."""
    monkeypatch.setattr(generate, "INTERIM_DOCUMENTS", 4)
    uninterrupted = generate.generate(settings(tiny, generator, tmp_path / "whole", documents=10))
    expected = (uninterrupted / "queries.jsonl").read_text()
    write, calls = generate.Generator.queries, []

    def interrupted(self: generate.Generator, documents: Sequence[Document], *done: Any) -> list[list[str]]:
        calls.append(len(documents))
        if len(calls) == 3:
            raise InterruptedError
        return write(self, documents, *done)

    monkeypatch.setattr(generate.Generator, "queries", interrupted)
    with pytest.raises(InterruptedError):
        generate.generate(settings(tiny, generator, tmp_path / "resumed", documents=10))
    assert not (tmp_path / "resumed").exists()
    resumed = generate.generate(settings(tiny, generator, tmp_path / "resumed", documents=10))
    assert calls == [4, 4, 2, 2]  # the third batch again, and no other
    assert (resumed / "queries.jsonl").read_text() == expected
    assert len(json_lines(resumed / "corpus.jsonl")) == 10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["resumed", "whole"]


def test_batches_by_length_keep_documents_and_queries_together(tiny: Path, generator: Path, tmp_path: Path) -> None:
    """The most likely query of a document does not depend on its batch."""
    most_likely = settings(tiny, generator, tmp_path, top_k=1, per_document=1, batch_size=1, max_document_length=40)
    write = generate.Generator(most_likely).queries
    documents = [Document(str(n), f"fever and cough in {n} of ten patients " * (1 + 7 * n % 5)) for n in range(8)]
    alone = [write([document])[0] for document in documents]
    done: list[int] = []
    assert write(documents, done.append) == alone and len({query for (query,) in alone}) > 2
    assert sum(done) == 8 > len(done) > 1


def test_a_checkpoint_that_generates_nothing_is_refused(tiny: Path, checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(CaiError, match="sequence-to-sequence"):
        generate.generate(settings(tiny, checkpoint, tmp_path / "queries"))
