"""Query generation with a small model with random weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

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


def test_a_causal_language_model_continues_its_prompt(tiny: Path, checkpoint: Path, tmp_path: Path) -> None:
    """The most likely text after the prompt, as transformers generates it for one document without padding."""
    folder, tokenizer = tmp_path / "x", AutoTokenizer.from_pretrained(str(checkpoint))
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=64, n_embd=32, n_layer=1, n_head=2, eos_token_id=102)
    model = GPT2LMHeadModel(config).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    options = {"top_k": 1, "per_document": 1, "prompt": "text: {document} query:"}
    documents = [Document(str(n), "fever and cough " * (3 + n)) for n in range(4)]
    found = generate.Generator(settings(tiny, folder, tmp_path, max_document_length=12, **options)).queries(documents)
    for document, (query,) in zip(documents, found, strict=True):
        cut = " ".join(document.contents.split()[:12])
        ids = tokenizer(f"text: {cut} query:", return_tensors="pt").input_ids
        written = model.generate(ids, max_new_tokens=6, do_sample=False)[0, ids.shape[1] :]
        assert query == tokenizer.decode(written, skip_special_tokens=True)
    with pytest.raises(CaiError, match="continues a text: set prompt to a text with"):
        generate.Generator(settings(tiny, folder, tmp_path, max_document_length=12)).queries(documents)
    with pytest.raises(CaiError, match=r"has 64 positions, too few for 7[0-9]: lower max_document_length"):
        long = settings(tiny, folder, tmp_path, max_document_length=60, **options)
        generate.Generator(long).queries([Document("long", "fever " * 70)])


def test_a_checkpoint_that_generates_nothing_is_refused(tiny: Path, checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(CaiError, match="sequence-to-sequence"):
        generate.generate(settings(tiny, checkpoint, tmp_path / "queries"))
