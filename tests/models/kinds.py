"""Folders of every kind of model, each built from small weights with its own library, and that library's vectors."""

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Dense, Module, Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import LayerNorm, Pooling, StaticEmbedding
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertJapaneseTokenizer,
    LlamaConfig,
    PretrainedConfig,
    T5Config,
)

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.models.checkpoint import load_checkpoint
from cai_pyserini.models.tokenizer import Tokenizer

TINY = Path(__file__).parents[1] / "data" / "tiny"
LENGTH = 24  # maximum length of the folders, in tokens; the longest text has more
WIDTH = 128  # of splade-tiny's token vectors
VOCABULARY = 4_000
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
FOLDER = tempfile.TemporaryDirectory()  # for the checkpoint that all folders are made from


def read_tiny() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Ids and contents of the documents and queries of the tiny collection."""
    collection = BeirFolder(TINY, "tiny")
    return [(d.id, d.contents) for d in collection.documents()], [*collection.topics("test").items()]


TEXTS = [
    "bladder infection",
    "The patients were treated with antibiotics for a repeated infection of the urinary tract; half of them recovered "
    "within two weeks, others had fever, pain or nausea, and three were sent home without any further treatment.",
    "heart",
    "",
    "marathon runners, with heart attacks and repeated repeated repeated words",
]
DOCUMENTS, QUERIES = map(dict, read_tiny())
ALL = [*TEXTS, *DOCUMENTS.values(), *QUERIES.values()]
PROMPTS = {"query": "Represent this question: ", "document": "passage: "}


Pair = tuple[np.ndarray, np.ndarray]  # of documents and of queries
Build = Callable[[Path], None]


class Kind(NamedTuple):
    """How to build a folder, the settings of an encoder.yaml for it, and what `encoded` needs to know: the library's
    model, if it does not open the folder itself, the name of the document prompt, and a change of query vectors."""

    build: Build
    settings: Mapping[str, Any] = MappingProxyType({})
    library: Callable[[Path], Any] | None = None
    document_prompt: str | None = None
    transform_queries: Callable[[np.ndarray], np.ndarray] = lambda vectors: vectors  # of ALL


@cache
def tiny() -> str:
    """splade-tiny with the beginning of its vocabulary, for speed."""
    folder = Path(FOLDER.name, "tiny")
    shutil.copytree(load_checkpoint("splade-tiny"), folder)
    tensors = load_file(folder / "model.safetensors")
    size = max(map(len, tensors.values()))
    cut = {name: tensor[:VOCABULARY].clone() if len(tensor) == size else tensor for name, tensor in tensors.items()}
    save_file(cut, folder / "model.safetensors", {"format": "pt"})
    change(folder / "config.json", vocab_size=VOCABULARY)
    settings = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokens = settings["model"]["vocab"]
    settings["model"]["vocab"] = {token: id for token, id in tokens.items() if id < VOCABULARY}
    (folder / "tokenizer.json").write_text(json.dumps(settings), encoding="utf-8")
    return str(folder)


def masked_lm(checkpoint: str | Path | None = None, length: int = LENGTH) -> Transformer:
    return Transformer(str(checkpoint or tiny()), transformer_task="fill-mask", max_seq_length=length)


def other_checkpoint(folder: Path) -> Path:
    """splade-tiny with other weights."""
    model = AutoModelForMaskedLM.from_pretrained(tiny())
    with torch.no_grad():
        model.get_output_embeddings().bias += 0.3
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny()).save_pretrained(folder)
    return folder


def japanese(folder: Path, subwords: str = "character", **settings: Any) -> Path:
    """A small random BERT with words from MeCab, and a vocabulary of a collection in Japanese and one in English."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = [d.contents for d in BeirFolder(TINY.with_name("ja"), "ja").documents()]
    characters = sorted({character for text in (*texts, *ALL) for character in text if character.strip()})
    pieces = [*characters, *map("##{}".format, characters), *{word: 0 for text in ALL for word in text.split()}]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys([*pieces, "です", "する", "痛み", "予防"])]
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
    kind = {"word_tokenizer_type": "mecab", "subword_tokenizer_type": subwords} | settings
    BertJapaneseTokenizer(str(folder / "vocab.txt"), **kind).save_pretrained(folder)
    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig(vocab_size=len(tokens), **SIZES))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return folder


def in_japanese(folder: Path) -> None:
    made = masked_lm(japanese(folder.with_name("japanese"), "wordpiece"))
    SparseEncoder(modules=[made, SpladePooling("max")]).save_pretrained(str(folder), create_model_card=False)


def static(length: int = LENGTH) -> SparseStaticEmbedding:
    """Bag-of-words queries."""
    tokenizer = AutoTokenizer.from_pretrained(tiny(), model_max_length=length)
    return SparseStaticEmbedding(tokenizer, 5 * torch.rand(len(tokenizer), generator=seeded()), frozen=True)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def sparse(*pooling: Any, **settings: Any) -> Build:
    def build(folder: Path) -> None:
        SparseEncoder(modules=[masked_lm(), SpladePooling(*pooling)], **settings).save_pretrained(
            str(folder), create_model_card=False
        )

    return build


def routed(queries: Callable[[Path], list[Module]], **settings: Any) -> Build:
    def build(folder: Path) -> None:
        documents = [masked_lm(), SpladePooling("max", "log1p_relu")]
        router = Router.for_query_document(queries(folder), documents)
        SparseEncoder(modules=[router], **settings).save_pretrained(str(folder), create_model_card=False)

    return build


def query_model(folder: Path) -> list[Module]:
    """A separate query model, with a smaller maximum length than the documents'."""
    checkpoint = other_checkpoint(folder.with_name(f"{folder.name}-queries"))
    return [masked_lm(checkpoint, 8), SpladePooling("max", "log1p_relu")]


def with_idf_json(folder: Path) -> None:
    """Build a folder with idf.json in place of the weights file."""
    routed(lambda _: [static()])(folder)
    place = folder / "query_0_SparseStaticEmbedding"
    weights = load_file(place / "model.safetensors")["weight"].tolist()
    (place / "model.safetensors").unlink()
    tokens = Tokenizer(place).ids
    (place / "idf.json").write_text(json.dumps({token: weights[id] for token, id in tokens.items()}))
    change(place / "config.json", path="idf.json")


def idf_json_by_its_library(folder: Path) -> SparseEncoder:
    copy = Path(shutil.copytree(folder, folder.with_name(f"{folder.name}-by-path"), dirs_exist_ok=True))
    place = copy / "query_0_SparseStaticEmbedding"
    change(place / "config.json", path=str(place / "idf.json"))
    return SparseEncoder(str(copy), device="cpu")


def older(build: Build, **names: str) -> Build:
    """Save a folder as versions before 5.5 did, with other names of modules, settings and pooling modes."""

    def rebuild(folder: Path) -> None:
        build(folder)
        modules = json.loads((folder / "modules.json").read_text())
        for module in modules:
            name = module["type"].rpartition(".")[2]
            module["type"] = names.get(name, f"sentence_transformers.models.{name}")
            if (config := folder / module["path"] / "config.json").is_file() and module["path"]:
                settings = json.loads(config.read_text())
                if "embedding_dimension" in settings:
                    settings["word_embedding_dimension"] = settings.pop("embedding_dimension")
                if mode := settings.pop("pooling_mode", None):
                    legacy = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens"}
                    settings |= {f"pooling_mode_{name}": mode == key for key, name in legacy.items()}
                config.write_text(json.dumps(settings))
            elif name == "Normalize":  # git keeps no empty folders
                shutil.rmtree(folder / module["path"], ignore_errors=True)
        (folder / "modules.json").write_text(json.dumps(modules))
        about = json.loads((folder / "config_sentence_transformers.json").read_text())
        kept = {key: about.get(key) for key in ("prompts", "model_type")}
        (folder / "config_sentence_transformers.json").write_text(json.dumps(kept))
        (folder / "sentence_bert_config.json").unlink()
        change(folder / "tokenizer_config.json", model_max_length=512)
        own = {"max_seq_length": LENGTH, "do_lower_case": False}
        (folder / "sentence_roberta_config.json").write_text(json.dumps(own))

    return rebuild


def bare(folder: Path) -> None:
    shutil.copytree(tiny(), folder)


def change(path: Path, /, **settings: Any) -> None:
    """Change settings in a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def dense(*modules: Callable[[], Module], **settings: Any) -> Build:
    def build(folder: Path) -> None:
        torch.manual_seed(0)
        made = [Transformer(tiny(), max_seq_length=LENGTH), *(module() for module in modules)]
        SentenceTransformer(modules=made, **settings).save_pretrained(str(folder), create_model_card=False)

    return build


def pooling(mode: Any, **settings: Any) -> Callable[[], Pooling]:
    return lambda: Pooling(WIDTH, pooling_mode=mode, **settings)


def small(config: PretrainedConfig, mode: str, side: str = "right", **settings: Any) -> Build:
    """A small random model of an architecture."""

    def build(folder: Path) -> None:
        torch.manual_seed(0)
        checkpoint = folder.with_name("checkpoint")
        AutoModel.from_config(config).save_pretrained(checkpoint)
        AutoTokenizer.from_pretrained(tiny(), padding_side=side, truncation_side=side).save_pretrained(checkpoint)
        modules = [Transformer(str(checkpoint), max_seq_length=LENGTH), Pooling(32, pooling_mode=mode), Normalize()]
        SentenceTransformer(modules=modules, **settings).save_pretrained(str(folder), create_model_card=False)

    return build


LLAMA = LlamaConfig(vocab_size=VOCABULARY, pad_token_id=0, **SIZES)
T5 = T5Config(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0)


def token_vectors(folder: Path, *more: Module) -> None:
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(tiny()).backend_tokenizer
    tokenizer.no_truncation()
    modules = [StaticEmbedding(tokenizer, embedding_dim=48), *more]
    SentenceTransformer(modules=modules).save_pretrained(str(folder), create_model_card=False)


def model2vec(folder: Path) -> None:
    """A folder as model2vec saves it: all files at the root, shared rows, and a weight for each token."""
    token_vectors(folder, Normalize())
    place = folder / "0_StaticEmbedding" if (folder / "0_StaticEmbedding").is_dir() else folder
    (rows,) = load_file(place / "model.safetensors").values()
    mapping = torch.arange(len(rows)) // 2
    tensors = {"embeddings": rows[: len(rows) // 2 + 1].half(), "mapping": mapping, "weights": torch.rand(len(rows))}
    shutil.copy(place / "tokenizer.json", folder.with_suffix(".json"))
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.name in ("modules.json", "README.md") or path.unlink()
    shutil.move(folder.with_suffix(".json"), folder / "tokenizer.json")
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "model2vec", "normalize": True}))
    types = {
        ".": "sentence_transformers.models.StaticEmbedding",
        "1_Normalize": "sentence_transformers.models.Normalize",
    }
    modules = [{"idx": i, "name": str(i), "path": place, "type": types[place]} for i, place in enumerate(types)]
    (folder / "modules.json").write_text(json.dumps(modules))


def bare_peer(*arguments: Any) -> Callable[[Path], SparseEncoder]:
    return lambda folder: SparseEncoder(modules=[masked_lm(folder, 256), SpladePooling(*arguments)], device="cpu")


def two_peers(folder: Path) -> SparseEncoder:
    queries = [masked_lm(other_checkpoint(folder.with_name("queries")), 256), SpladePooling()]
    router = Router.for_query_document(queries, [masked_lm(folder, 256), SpladePooling()])
    return SparseEncoder(modules=[router], device="cpu")


def weighted_peer(folder: Path) -> SparseEncoder:
    place = folder.with_name("weights.json")
    place.write_text(json.dumps({"three": 3.5, "blood": 1.25, "heart": 0.5, "[UNK]": 0.125}))
    queries = SparseStaticEmbedding.from_json(str(place), AutoTokenizer.from_pretrained(tiny()))
    router = Router.for_query_document([queries], [masked_lm(folder, 256), SpladePooling()])
    return SparseEncoder(modules=[router], device="cpu")


def in_text(vectors: np.ndarray) -> np.ndarray:
    """Remove terms that are not in the text."""
    return vectors * (Tokenizer(Path(tiny())).bag_of_words(ALL, 256).toarray() > 0)


def bare_dense_peer(folder: Path) -> SentenceTransformer:
    return SentenceTransformer(modules=[Transformer(str(folder), max_seq_length=256), pooling("cls")()], device="cpu")


def dense_router(folder: Path) -> None:
    """One shared transformer, followed by separate layers for queries and documents."""
    torch.manual_seed(0)
    shared = [Transformer(tiny(), max_seq_length=LENGTH), Pooling(WIDTH)]
    router = Router.for_query_document([*shared, Dense(WIDTH, 32)], [*shared, Dense(WIDTH, 32)])
    SentenceTransformer(modules=[router]).save_pretrained(str(folder), create_model_card=False)


MLM = {"Transformer": "sentence_transformers.sparse_encoder.models.MLMTransformer"}
MLM["SpladePooling"] = "sentence_transformers.sparse_encoder.models.SpladePooling"
SPARSE = {
    "SPLADE, max": Kind(sparse("max")),
    "SPLADE, sum": Kind(sparse("sum")),
    "SPLADE, log1p_relu": Kind(sparse("max", "log1p_relu")),
    "SPLADE, the largest weights": Kind(sparse("max", max_active_dims=16)),
    "SPLADE with prompts": Kind(sparse("max", prompts=PROMPTS)),
    "SPLADE, older folder": Kind(older(sparse("sum"), **MLM)),
    "SPLADE, Japanese BERT": Kind(in_japanese),
    "bag-of-words queries": Kind(routed(lambda _: [static(40)])),  # with a larger maximum length than the documents'
    "bag-of-words queries, cut": Kind(routed(lambda _: [static()], max_active_dims=4)),
    "bag-of-words queries, idf.json": Kind(with_idf_json, library=idf_json_by_its_library),
    "SPLADE, two models": Kind(routed(query_model)),
    "checkpoint": Kind(bare, library=bare_peer()),
    "checkpoint, settings": Kind(
        bare, {"pooling": "sum", "activation": "log1p_relu"}, library=bare_peer("sum", "log1p_relu")
    ),
    "query_checkpoint": Kind(bare, {"query_checkpoint": "queries"}, library=two_peers),
    "query_weights": Kind(bare, {"query_weights": "weights.json", "query": "bow"}, library=weighted_peer),
    "binary_queries": Kind(bare, {"binary_queries": True}, library=bare_peer(), transform_queries=np.sign),
    "expand_queries: false": Kind(bare, {"expand_queries": False}, library=bare_peer(), transform_queries=in_text),
}
DENSE = {
    "dense, mean": Kind(dense(pooling("mean"))),
    "dense, mean, normalized": Kind(dense(pooling("mean"), Normalize)),
    "dense, older folder": Kind(older(dense(pooling("cls"), Normalize))),
    "dense, cls with prompts": Kind(dense(pooling("cls"), Normalize, prompts=PROMPTS)),
    "dense, prompt for passages": Kind(
        dense(pooling("mean"), prompts={"query": "query: ", "passage": "passage: "}), document_prompt="passage"
    ),
    "dense, default prompt": Kind(
        dense(pooling("mean"), prompts={"s2s": "Identify the topic: "}, default_prompt_name="s2s")
    ),
    "dense, pooled without the prompt": Kind(dense(pooling("mean", include_prompt=False), Normalize, prompts=PROMPTS)),
    "dense, last token": Kind(dense(pooling("lasttoken"), Normalize)),
    "dense, last token of a language model": Kind(
        small(LLAMA, "lasttoken", "left", prompts={"query": "Instruct: find an answer\nQuery: "})
    ),
    "dense, weighted mean": Kind(dense(pooling("weightedmean"))),
    "dense, several poolings": Kind(dense(pooling(["mean", "max", "mean_sqrt_len_tokens"]))),
    "dense, mean and a layer": Kind(dense(pooling("mean"), lambda: Dense(WIDTH, 64), Normalize)),
    "dense, a layer without activation": Kind(
        dense(pooling("mean"), lambda: Dense(WIDTH, 64, bias=False, activation_function=torch.nn.Identity()))
    ),
    "dense, LayerNorm": Kind(dense(pooling("mean"), lambda: LayerNorm(WIDTH))),
    "dense, first dimensions": Kind(dense(pooling("mean"), Normalize, truncate_dim=32)),
    "dense, dot": Kind(dense(pooling("cls"), similarity_fn_name="dot")),
    "dense, encoder of T5": Kind(small(T5, "mean")),
    "dense, two models": Kind(dense_router),
    "token vectors": Kind(token_vectors),
    "token vectors of model2vec": Kind(model2vec),
    "dense checkpoint, cls": Kind(bare, {"kind": "dense", "pooling": "cls"}, library=bare_dense_peer),
}
KINDS = SPARSE | DENSE


def encoded(name: str, folder: Path) -> Pair:
    """Encode ALL texts with a kind's own library; the vectors of blank texts are zero."""
    kind, texts = KINDS[name], ALL
    own = SparseEncoder if name in SPARSE else SentenceTransformer
    model = kind.library(folder) if kind.library else own(str(folder), device="cpu")
    more: dict[str, Any] = {} if name in SPARSE else {"normalize_embeddings": model.similarity_fn_name != "dot"}
    documents = model.encode_document(texts, prompt_name=kind.document_prompt, convert_to_tensor=True, **more)
    queries = model.encode_query(texts, convert_to_tensor=True, **more)
    dense = [vectors.to_dense().float().numpy(force=True) for vectors in (documents, queries)]
    for vectors in dense:
        vectors[[not text.strip() for text in texts]] = 0
    return dense[0], kind.transform_queries(dense[1])


class BuiltKind(NamedTuple):
    """A kind's folder, an encoder.yaml for it with fine quantization, and the library's vectors of ALL texts."""

    folder: Path
    yaml: Path
    expected: Pair


def make(name: str, root: Path) -> BuiltKind:
    kind, folder = KINDS[name], root / "folder"
    root.mkdir()
    kind.build(folder)
    expected = encoded(name, folder)
    path = root / "mine.yaml"
    settings = {"bits": 16, "query_scale": 10_000} if name in SPARSE else {}
    path.write_text(yaml.safe_dump({"checkpoint": "folder", **settings, **kind.settings}))
    return BuiltKind(folder, path, expected)
