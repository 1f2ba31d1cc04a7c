"""Query generation (docT5query, Nogueira & Lin 2019; GPL, Wang et al. 2022): queries that a document could answer.

A sequence-to-sequence model reads a document and writes queries, sampled with top-k and nucleus sampling (the paper's
settings: k 25, p 0.95, three per document, at most a million documents). The result is a BEIR folder with the
documents, `queries.jsonl` and `qrels/train.tsv`: a collection like any other, to search, to mine, or to expand
documents with.
"""

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import compress, tee
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from cai_pyserini.collection.contract import Document
from cai_pyserini.collection.readers import open_collection
from cai_pyserini.core import artifact
from cai_pyserini.core.config import load_encoder, load_index_config
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.terminal import progress
from cai_pyserini.models.checkpoint import checkpoint_digest, checkpoint_folder, require_positions
from cai_pyserini.models.device import resolve_device
from cai_pyserini.models.transformer import load_pretrained
from cai_pyserini.trainer.batches import in_batches
from cai_pyserini.trainer.settings import GenerateSettings, recorded

STAGE = "trainer generate"
KEPT = 512  # documents per file of the interim results, which an interruption costs at most


class Generator:
    """A query generator, whose model is loaded when it is first needed."""

    def __init__(self, settings: GenerateSettings):
        self.settings = settings
        self.checkpoint = checkpoint_folder(load_encoder(settings.generator))
        require_positions(self.checkpoint, {"--max-document-length": settings.max_document_length})

    @cached_property
    def _model(self) -> tuple[Any, Any, torch.device]:
        """The model, its tokenizer and its device."""
        device = resolve_device(self.settings.device)
        model = load_pretrained("AutoModelForSeq2SeqLM", self.checkpoint, "sequence-to-sequence model")
        return model.to(device), AutoTokenizer.from_pretrained(str(self.checkpoint)), device

    def queries(self, documents: Sequence[Document]) -> list[list[str]]:
        """Different queries that are not blank for each document of a batch, at most `per_document`."""
        model, tokenizer, device = self._model
        settings = self.settings
        inputs = tokenizer(
            [document.contents for document in documents],
            truncation=True,
            max_length=settings.max_document_length,
            padding=True,
            return_tensors="pt",
            return_token_type_ids=False,
        ).to(device)
        written = model.generate(
            **inputs,
            do_sample=True,
            top_k=settings.top_k,
            top_p=settings.top_p,
            num_return_sequences=settings.per_document,
            max_new_tokens=settings.max_query_length,
        )
        texts = [" ".join(text.split()) for text in tokenizer.batch_decode(written, skip_special_tokens=True)]
        by_document = (texts[i : i + settings.per_document] for i in range(0, len(texts), settings.per_document))
        return [[text for text in dict.fromkeys(own) if text] for own in by_document]


def recipe(settings: GenerateSettings) -> artifact.Recipe:
    """What generated queries depend on."""
    inputs = {
        "documents": open_collection(load_index_config(settings.collection)).fingerprint("documents"),
        "checkpoint": checkpoint_digest(checkpoint_folder(load_encoder(settings.generator))),
    }
    return artifact.recipe(STAGE, inputs, **recorded(settings, "collection", "generator", "batch_size"))


def generate(settings: GenerateSettings) -> Path:
    """Write the BEIR folder. Interim results are kept in `.<output>.batches`."""
    collection = open_collection(load_index_config(settings.collection))
    generator = Generator(settings)
    made_by = recipe(settings)
    batches = settings.output.with_name(f".{settings.output.name}.batches")

    def write(folder: Path) -> artifact.Stats:
        def with_text() -> Iterator[Document]:
            return (document for document in collection.documents() if document.contents.strip())

        every = sum(1 for _ in with_text())
        size = min(every, settings.documents)
        chosen = np.zeros(every, bool)
        chosen[random.Random(settings.seed).sample(range(every), size)] = True
        documents, again = tee(compress(with_text(), chosen))  # one is a batch of the other ahead
        bar = progress(range(0), size, "generate queries")

        def records(number: int, part: Sequence[Document]) -> Iterator[dict[str, Any]]:
            torch.manual_seed(settings.seed + number)  # a batch has the same queries whatever was generated before it
            for start in range(0, len(part), settings.batch_size):
                batch = part[start : start + settings.batch_size]
                for document, queries in zip(batch, generator.queries(batch), strict=True):
                    yield {"id": document.id, "queries": queries}
                bar.update(len(batch))

        with bar:
            count = _write_folder(folder, documents, in_batches(again, KEPT, batches, made_by, records))
        if not count:
            raise CaiError(f"{generator.checkpoint} wrote no query for {size:,} documents; is it a query generator?")
        return {"documents": size, "queries": count}

    artifact.make(settings.output, made_by, write)
    artifact.remove(batches)
    return settings.output


def _write_folder(folder: Path, documents: Iterable[Document], records: Iterator[dict[str, Any]]) -> int:
    """Write a BEIR folder of documents and their queries, streamed; returns the number of queries."""
    (folder / "qrels").mkdir()
    count = 0
    with (
        (folder / "corpus.jsonl").open("w", encoding="utf-8") as corpus,
        (folder / "queries.jsonl").open("w", encoding="utf-8") as queries,
        (folder / "qrels" / "train.tsv").open("w", encoding="utf-8") as qrels,
    ):
        qrels.write("query-id\tcorpus-id\tscore\n")
        for document, record in zip(documents, records, strict=True):
            corpus.write(_line({"_id": document.id, "title": "", "text": document.contents}))
            for number, query in enumerate(record["queries"]):
                queries.write(_line({"_id": f"{document.id}-{number}", "text": query}))
                qrels.write(f"{document.id}-{number}\t{document.id}\t1\n")
                count += 1
    return count


def _line(record: dict[str, str]) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"
