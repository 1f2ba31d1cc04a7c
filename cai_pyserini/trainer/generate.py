"""Query generation (docT5query, Nogueira & Lin 2019; GPL, Wang et al. 2022): queries that a document could answer.

A sequence-to-sequence model reads a document and writes queries, sampled with top-k and nucleus sampling (the paper's
settings: k 25, p 0.95, three a document, at most a million documents). The result is a BEIR folder with the documents,
`queries.jsonl` and `qrels/train.tsv`: a collection as any other, to search, to mine, or to expand documents with.
"""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cai_pyserini import artifact, cli
from cai_pyserini.cli import CaiError
from cai_pyserini.collection import Document, open_collection
from cai_pyserini.config import checkpoint_digest, checkpoint_folder, load_encoder, load_index_config
from cai_pyserini.trainer import settings
from cai_pyserini.trainer.parts import in_parts

PART = 512  # documents


@dataclass(frozen=True)
class Settings:
    """What query generation can be told. Defaults are the paper's."""

    collection: str = field(metadata={"help": "a name in index_configs/, a YAML file, or a BEIR folder"})
    generator: str = field(metadata={"help": "checkpoint folder or hub id, such as BeIR/query-gen-msmarco-t5-base-v1"})
    output: str = field(metadata={"help": "BEIR folder to write"})
    per_document: int = field(default=3, metadata={"help": "queries"})
    documents: int = field(default=1_000_000, metadata={"help": "a sample of so many, where there are more"})
    max_document_length: int = field(default=350, metadata={"help": "tokens that the model reads"})
    max_query_length: int = field(default=64, metadata={"help": "tokens that it writes, at most"})
    top_k: int = field(default=25, metadata={"help": "sampling among the likeliest so many tokens"})
    top_p: float = field(default=0.95, metadata={"help": "and among those with this probability together"})
    batch_size: int = field(default=16, metadata={"help": "documents"})
    seed: int = field(default=42, metadata={"help": "of all draws"})
    device: str = field(default="auto", metadata={"help": "auto, or cpu"})


def generate(given: Settings) -> Path:
    """Write the BEIR folder. An interrupted run goes on in `.<output>.parts`."""
    collection = open_collection(load_index_config(given.collection))
    checkpoint = checkpoint_folder(load_encoder(given.generator))
    output = Path(given.output)
    recipe = {
        "stage": "generate",
        "format": 1,
        "documents": collection.fingerprint("documents"),
        "checkpoint": checkpoint_digest(checkpoint),
        "settings": settings.recipe(given, "collection", "generator", "batch_size"),
    }
    if artifact.is_fresh(output, recipe):
        return output
    documents = [document for document in collection.documents() if document.contents.strip()]
    if len(documents) > given.documents:
        kept = sorted(random.Random(given.seed).sample(range(len(documents)), given.documents))
        documents = [documents[i] for i in kept]
    parts = output.with_name(f".{output.name}.parts")
    bar = cli.progress(range(0), len(documents), "generate queries")
    with bar, artifact.building(output, recipe) as (partial, facts):
        records = in_parts(documents, PART, parts, recipe, _generator(given, checkpoint, bar.update))
        (partial / "qrels").mkdir()
        count = 0
        with (
            (partial / "corpus.jsonl").open("w", encoding="utf-8") as corpus,
            (partial / "queries.jsonl").open("w", encoding="utf-8") as queries,
            (partial / "qrels" / "train.tsv").open("w", encoding="utf-8") as qrels,
        ):
            qrels.write("query-id\tcorpus-id\tscore\n")
            for document, record in zip(documents, records, strict=True):
                line = {"_id": document.id, "title": "", "text": document.contents}
                corpus.write(json.dumps(line, ensure_ascii=False) + "\n")
                for number, query in enumerate(record["queries"]):
                    id = f"{document.id}-{number}"
                    queries.write(json.dumps({"_id": id, "text": query}, ensure_ascii=False) + "\n")
                    qrels.write(f"{id}\t{document.id}\t1\n")
                    count += 1
        if not count:
            raise CaiError(f"{checkpoint} wrote no query for {len(documents):,} documents; is it a query generator?")
        facts |= {"documents": len(documents), "queries": count}
    artifact.remove(parts)
    return output


def _generator(
    given: Settings, checkpoint: Path, done: Callable[[int], object]
) -> Callable[[int, tuple[Document, ...]], Iterator[dict]]:
    """A function that writes queries for a part of the documents; the model is loaded for the first."""
    loaded: list[Any] = []

    def generate(number: int, part: tuple[Document, ...]) -> Iterator[dict]:
        import torch
        from transformers import AutoTokenizer

        from cai_pyserini.splade import load_pretrained, resolve_device

        device = resolve_device(given.device)
        if not loaded:
            model = load_pretrained("AutoModelForSeq2SeqLM", checkpoint, "sequence-to-sequence model")
            loaded.extend((model.to(device), AutoTokenizer.from_pretrained(str(checkpoint))))
        model, tokenizer = loaded
        torch.manual_seed(given.seed + number)  # a part comes out alike whatever was made before it
        for start in range(0, len(part), given.batch_size):
            batch = part[start : start + given.batch_size]
            inputs = tokenizer(
                [document.contents for document in batch],
                truncation=True,
                max_length=given.max_document_length,
                padding=True,
                return_tensors="pt",
                return_token_type_ids=False,
            ).to(device)
            written = model.generate(
                **inputs,
                do_sample=True,
                top_k=given.top_k,
                top_p=given.top_p,
                num_return_sequences=given.per_document,
                max_new_tokens=given.max_query_length,
            )
            texts = [" ".join(text.split()) for text in tokenizer.batch_decode(written, skip_special_tokens=True)]
            for i, document in enumerate(batch):
                own = texts[i * given.per_document : (i + 1) * given.per_document]
                yield {"id": document.id, "queries": [text for text in dict.fromkeys(own) if text]}
            done(len(batch))

    return generate


def main() -> None:
    given = settings.parse(
        Settings,
        "Write queries for the documents of a collection with a sequence-to-sequence model.",
        "python -m cai_pyserini.trainer.generate --collection scifact "
        "--generator BeIR/query-gen-msmarco-t5-base-v1 --output generated/scifact",
    )
    manifest = artifact.require_manifest(generate(given), "generate")
    print(f"{given.output}: {manifest['queries']:,} queries for {manifest['documents']:,} documents")


if __name__ == "__main__":
    cli.run(main)
