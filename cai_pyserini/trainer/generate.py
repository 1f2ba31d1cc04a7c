"""Generate queries that documents could answer (docT5query, Nogueira & Lin 2019; GPL, Wang et al. 2022).

A sequence-to-sequence model reads a document, and generates queries with top-k and nucleus sampling (the paper's
settings: k 25, p 0.95, three per document, at most a million documents). The result is a BEIR folder with the
documents, `queries.jsonl` and `qrels/train.tsv`: a collection like any other, to search, to mine, or to expand
documents with.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import batched, compress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cai_pyserini.collections.contract import Document
from cai_pyserini.collections.readers import load_collection
from cai_pyserini.core import artifact, files, jsonl
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.terminal import progress
from cai_pyserini.models.checkpoint import checkpoint_digest, load_checkpoint, require_positions, require_safetensors
from cai_pyserini.models.device import resolve_device
from cai_pyserini.models.tokenizer import Done, load_tokenizer, text_batches
from cai_pyserini.models.transformer import batches as by_length
from cai_pyserini.models.transformer import load_pretrained
from cai_pyserini.trainer.settings import GenerateSettings, recorded

STAGE = "trainer generate"
INTERIM_DOCUMENTS = 512  # documents per file of interim results; an interruption loses at most one file


class Generator:
    """A query generator. Its model is loaded when it is first needed."""

    def __init__(self, settings: GenerateSettings):
        self.settings = settings
        self.checkpoint = load_checkpoint(settings.generator)
        require_safetensors(self.checkpoint)
        require_positions(self.checkpoint, {"max_document_length": settings.max_document_length})

    @cached_property
    def _model(self) -> tuple[Any, Any, torch.device]:
        device = resolve_device(self.settings.device)
        model = load_pretrained("AutoModelForSeq2SeqLM", self.checkpoint, "sequence-to-sequence model")
        return model.to(device), load_tokenizer(self.checkpoint), device

    def queries(self, documents: Sequence[Document], done: Done = lambda count: None) -> list[list[str]]:
        """Generate at most `per_document` distinct, nonblank queries for each document. Batches have documents of
        similar length, and as many tokens as `batch_size` documents of full length."""
        _, tokenizer, _ = self._model
        texts, size = [document.contents for document in documents], self.settings.batch_size
        cut = {"truncation": True, "max_length": self.settings.max_document_length}
        ids = [ids for part in text_batches(texts, len) for ids in tokenizer(part, **cut).input_ids]
        generated: list[list[str]] = [[]] * len(ids)
        for group in by_length([len(each) for each in ids], size * self.settings.max_document_length, 8 * size):
            for position, queries in zip(group, self._generate([ids[position] for position in group]), strict=True):
                generated[position] = queries
            done(len(group))
        return generated

    def _generate(self, ids: list[list[int]]) -> list[list[str]]:
        model, tokenizer, device = self._model
        settings = self.settings
        inputs = tokenizer.pad({"input_ids": ids}, return_tensors="pt").to(device)
        generated = model.generate(
            **inputs,
            do_sample=True,
            top_k=settings.top_k,
            top_p=settings.top_p,
            num_return_sequences=settings.per_document,
            max_new_tokens=settings.max_query_length,
            pad_token_id=tokenizer.pad_token_id,
        )
        texts = tokenizer.batch_decode(generated, skip_special_tokens=True)
        lines = [" ".join(text.strip().partition("\n")[0].split()) for text in texts]
        return [[text for text in dict.fromkeys(own) if text] for own in batched(lines, settings.per_document)]


def generate(settings: GenerateSettings) -> Path:
    """Write the BEIR folder. Interim results are kept in `.<output>.batches`."""
    collection = load_collection(settings.collection)
    generator = Generator(settings)
    batches = settings.output.with_name(f".{settings.output.name}.batches")
    inputs = {"documents": collection.fingerprint("documents"), "checkpoint": checkpoint_digest(generator.checkpoint)}
    recipe = artifact.recipe(STAGE, inputs, **recorded(settings, "collection", "generator"))

    def write(folder: Path) -> artifact.Stats:
        def nonblank() -> Iterator[Document]:
            return (document for document in collection.documents() if document.contents.strip())

        def process(number: int, part: Sequence[Document]) -> Iterator[dict[str, Any]]:
            torch.manual_seed(settings.seed + number)  # a batch's queries do not depend on earlier batches
            for document, queries in zip(part, generator.queries(part, bar.update), strict=True):
                yield {"id": document.id, "queries": queries}

        def queries() -> Iterator[tuple[str, str, str]]:  # id, document id and text
            records = in_batches(compress(nonblank(), chosen), INTERIM_DOCUMENTS, batches, recipe, process)
            return ((f"{r['id']}-{n}", r["id"], query) for r in records for n, query in enumerate(r["queries"]))

        total = sum(1 for _ in nonblank())
        size = min(total, settings.documents)
        chosen = np.zeros(total, bool)
        chosen[random.Random(settings.seed).sample(range(total), size)] = True
        with progress(range(0), size, "generate queries") as bar:
            count = jsonl.write(folder / "queries.jsonl", ({"_id": id, "text": query} for id, _, query in queries()))
        if not count:
            raise CaiError(f"{generator.checkpoint} made no query for {size:,} documents; is it a query generator?")
        (folder / "qrels").mkdir()
        with (folder / "qrels" / "train.tsv").open("w", encoding="utf-8") as qrels:
            qrels.write("query-id\tcorpus-id\tscore\n")
            qrels.writelines(f"{id}\t{document}\t1\n" for id, document, _ in queries())
        documents = compress(nonblank(), chosen)
        corpus = ({"_id": document.id, "title": "", "text": document.contents} for document in documents)
        jsonl.write(folder / "corpus.jsonl", corpus)
        return {"documents": size, "queries": count}

    artifact.make(settings.output, recipe, write)
    files.remove(batches)
    return settings.output


def in_batches[T](
    items: Iterable[T],
    size: int,
    folder: Path,
    recipe: artifact.Recipe,
    process: Callable[[int, tuple[T, ...]], Iterable[dict[str, Any]]],
) -> Iterator[dict[str, Any]]:
    """Yield the records that `process` makes from the number and the items of each batch. They are kept as JSONL files
    in `folder`, so that an interrupted run continues with the first missing batch."""

    def write(path: Path, number: int, batch: tuple[T, ...]) -> artifact.Stats:
        return {"records": jsonl.write(path, process(number, batch))}

    for number, batch in enumerate(batched(items, size)):
        path = folder / f"{number:05d}.jsonl"
        artifact.make(path, recipe | {"batch": number}, partial(write, number=number, batch=batch), folder=False)
        for _, record in jsonl.read(path):
            yield record
