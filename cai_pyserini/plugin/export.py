"""For machines with stock Pyserini and nothing of ours: the encoder and pre-encoded topics in the forms it loads.

Stock Pyserini takes a folder for a SPLADE encoder where its path has `splade` in it, and loads PyTorch weights from it,
not safetensors. It takes a .jsonl file for pre-encoded queries, {"id": …, "contents": query, "vector": {term: weight}}.
"""

import json
import shutil
from pathlib import Path
from typing import Literal

from cai_pyserini import artifact, cli
from cai_pyserini.cli import CaiError
from cai_pyserini.config import EncoderConfig, checkpoint_folder, load_encoder, load_index_config


def export_encoder(config: EncoderConfig, output: Path) -> Path:
    """Write a checkpoint as a folder for Pyserini's SpladeQueryEncoder and SpladeDocumentEncoder."""
    if "splade" not in output.resolve().name.lower():
        raise CaiError(f"{output}: stock Pyserini knows a SPLADE encoder by `splade` in its name; name the folder so")
    import torch
    from safetensors.torch import load_file

    checkpoint = checkpoint_folder(config)
    weights = sorted(checkpoint.glob("*.safetensors"))
    if not weights:
        raise CaiError(f"{checkpoint} has no *.safetensors")
    recipe = {"stage": "export", "format": 1, "files": {path.name: artifact.file_digest(path) for path in weights}}
    with artifact.building(output, recipe) as (partial, _):
        for path in checkpoint.iterdir():
            if path.suffix in (".json", ".txt", ".model") and not path.name.endswith(".index.json"):
                shutil.copy(path, partial / path.name)
        state = {name: tensor for path in weights for name, tensor in load_file(path).items()}
        torch.save(state, partial / "pytorch_model.bin")
    return output


def export_topics(topics: dict[str, str], config: EncoderConfig, output: Path, device: str = "auto") -> Path:
    """Write topics.json, Pyserini's topics; and splade.jsonl and splade-doc.jsonl, the same pre-encoded."""
    from cai_pyserini.search import query_impacts
    from cai_pyserini.splade import Splade

    splade = Splade(checkpoint_folder(config), device, "float32")
    texts = list(topics.values())
    queries: dict[Literal["splade", "splade-doc"], list[dict[str, int]]] = {
        "splade": query_impacts(
            splade.encode(texts, config.max_query_length), splade.tokenizer.terms, config.query_scale
        ),
        "splade-doc": query_impacts(
            splade.tokenizer.bag_of_words(texts, config.max_query_length), splade.tokenizer.terms, config.query_scale
        ),
    }
    with artifact.building(output, {"stage": "export", "format": 1, "topics": artifact.digest(topics)}) as (partial, _):
        (partial / "topics.json").write_text(json.dumps({id: {"title": text} for id, text in topics.items()}, indent=1))
        for name, vectors in queries.items():
            with (partial / f"{name}.jsonl").open("w", encoding="utf-8") as file:
                for (id, text), vector in zip(topics.items(), vectors, strict=True):
                    file.write(json.dumps({"id": id, "contents": text, "vector": vector}, ensure_ascii=False) + "\n")
    return output


def main() -> None:
    parser = cli.parser(
        "Write an encoder, or pre-encoded topics, for stock Pyserini without this package. Search with them as in\n"
        "  python -m pyserini.search.lucene --index INDEX --topics topics/topics.json --impact --min-idf -1 \\\n"
        "      --encoder topics/splade.jsonl --output run.trec",
        "python -m cai_pyserini.export topics --collection hpo --encoder splade-tiny --output topics",
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    encoder = kinds.add_parser("encoder", help="a folder that Pyserini's SpladeQueryEncoder loads")
    topics = kinds.add_parser("topics", help="topics.json, splade.jsonl and splade-doc.jsonl")
    topics.add_argument("--collection", required=True, help="a name in index_configs/, a YAML file, or a BEIR folder")
    topics.add_argument("--split", help="whose queries; default: the collection's, test")
    topics.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, …; auto: cuda where there is one")
    for kind in (encoder, topics):
        kind.add_argument(
            "--encoder", required=True, help="a name in encoders/, a YAML file, a checkpoint folder or a hub id"
        )
        kind.add_argument("--output", type=Path, required=True, help="folder to write")
    args = parser.parse_args()
    config = load_encoder(args.encoder)
    if args.kind == "encoder":
        export_encoder(config, args.output)
    else:
        from cai_pyserini.collection import open_collection

        collection = load_index_config(args.collection)
        export_topics(
            open_collection(collection).topics(args.split or collection.split), config, args.output, args.device
        )
    print(args.output)


if __name__ == "__main__":
    cli.run(main)
