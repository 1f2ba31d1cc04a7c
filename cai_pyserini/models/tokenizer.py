"""Tokenize texts, and name tokens in indexes."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from functools import cached_property, lru_cache, reduce
from importlib.util import find_spec
from operator import or_
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix
from tokenizers import NormalizedString, PreTokenizedString
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import PreTokenizer
from tokenizers.processors import BertProcessing

from cai_pyserini.core.artifact import digest
from cai_pyserini.core.config import GRAM, WORD
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.packages import install_command, require_encode
from cai_pyserini.models.checkpoint import own_code_error, read_json

NAME_LENGTH = 200  # characters of a name in error messages
PAD_MULTIPLE = 8  # texts are padded to a multiple of this number of tokens
BATCH_TEXTS = 256  # tokenized at a time
BATCH_CHARACTERS = 1 << 20  # tokenized at a time, unless one text has more; each takes about 100 bytes
NO_FAST_TOKENIZER = (
    "its tokenizer is written in Python, without a fast version (tokenizer.json): choose a checkpoint that has one"
)
BERT_TOKENS = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
MECAB_NAMES = ("fugashi", "unidic_lite", "ipadic")  # packages of the extra `japanese`
Done = Callable[[int], object]  # called with the number of texts that have been processed

os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


class _PythonPreTokenizer:
    """A pre-tokenizer that splits texts into the tokens of a tokenizer written in Python."""

    def __init__(self, loaded: Any):
        self._tokenize = loaded.tokenize

    def pre_tokenize(self, text: PreTokenizedString) -> None:
        text.split(lambda _, part: [NormalizedString(token) for token in self._tokenize(str(part))])


def _backend(checkpoint: Path, loaded: Any) -> Backend:
    """Wrap a BertJapaneseTokenizer as a fast backend. Raises CaiError for any other tokenizer written in Python."""
    from transformers import BertJapaneseTokenizer  # rarely needed

    if not isinstance(loaded, BertJapaneseTokenizer) or loaded.subword_tokenizer_type == "sentencepiece":
        raise CaiError(f"{checkpoint}: {NO_FAST_TOKENIZER}")
    backend = Backend(WordLevel(loaded.get_vocab(), loaded.unk_token))
    backend.pre_tokenizer = PreTokenizer.custom(_PythonPreTokenizer(loaded))
    sep, cls = ((token, loaded.convert_tokens_to_ids(token)) for token in (loaded.sep_token, loaded.cls_token))
    backend.post_processor = BertProcessing(sep, cls)
    return backend


def require_tokenizer(checkpoint: Path, needed: Set[str] = frozenset()) -> None:
    """Raise CaiError for a folder without a tokenizer, or without one of the `needed` files."""
    files = {path.name for path in checkpoint.glob("*")}
    found = (name in ("tokenizer.json", "vocab.txt", "merges.txt") or name.endswith(".model") for name in files)
    if not any(found) or not needed <= files:
        raise CaiError(f"{checkpoint}: no tokenizer (tokenizer.json) in this folder")


class _Plain:
    """A checkpoint's tokenizer.json, read without transformers, with what Tokenizer asks of a tokenizer of theirs."""

    is_fast = True

    def __init__(self, checkpoint: Path):
        self._checkpoint = checkpoint
        files = ("special_tokens_map.json", "tokenizer_config.json")
        self.config: dict[str, Any] = reduce(or_, (read_json(checkpoint / name) for name in files))
        self.is_bert = self.config.get("tokenizer_class") in ("BertTokenizer", "BertTokenizerFast")
        self.config = (BERT_TOKENS if self.is_bert else {}) | self.config
        self.truncation_side = self.config.get("truncation_side", "right")

    @cached_property
    def backend_tokenizer(self) -> Backend:
        try:
            return Backend.from_file(str(self._checkpoint / "tokenizer.json"))
        except Exception as error:  # of many kinds, see load_tokenizer
            remedy = f"reading it otherwise needs transformers: {install_command('encode')}"
            raise CaiError(f"{self._checkpoint}: its tokenizer.json cannot be read ({error}); {remedy}") from None

    @property
    def pad_token_id(self) -> int | None:
        return self._id("pad_token")

    @property
    def unk_token_id(self) -> int | None:
        return self._id("unk_token")

    def _id(self, name: str) -> int | None:
        token = self.config.get(name) or ""
        id: int | None = self.backend_tokenizer.token_to_id(token["content"] if isinstance(token, dict) else token)
        return id

    def is_as_in_transformers(self) -> bool:
        """Whether this is what transformers makes of a tokenizer.json that it takes as it is, without settings but
        special tokens, or of a BertTokenizer, from its vocabulary and configuration."""
        if not self.is_bert:
            others = {key for key in self.config if not key.endswith("_token")}
            return self.config.get("tokenizer_class") == "PreTrainedTokenizerFast" and others == {"tokenizer_class"}
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
        ids = {token: self.backend_tokenizer.token_to_id(token) for token in BERT_TOKENS.values()}
        added = {str(id): {"content": token} | flags for token, id in ids.items()}
        single = [{"SpecialToken": {"id": id, "type_id": 0}} for id in ("[CLS]", "[SEP]")]
        words = {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
        }
        normalizer = {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": self.config.get("tokenize_chinese_chars", True),
            "strip_accents": self.config.get("strip_accents"),
            "lowercase": self.config.get("do_lower_case", True),
        }
        found = read_json(self._checkpoint / "tokenizer.json")
        more = ("auto_map", "extra_special_tokens", "additional_special_tokens")
        return (
            self.config.items() >= BERT_TOKENS.items()
            and not any(self.config.get(name) for name in (*more, "split_special_tokens"))
            and self.config.get("added_tokens_decoder", added) == added
            and {str(each.pop("id")): each for each in found["added_tokens"]} == added
            and found["normalizer"] == normalizer
            and found["pre_tokenizer"] == {"type": "BertPreTokenizer"}
            and found["post_processor"]["single"] == [single[0], {"Sequence": {"id": "A", "type_id": 0}}, single[1]]
            and found["model"] | {"vocab": None} == words | {"vocab": None}
        )


def load_tokenizer(checkpoint: Path) -> Any:
    """Load a checkpoint's tokenizer with transformers. Raises CaiError if it is missing or cannot be read."""
    require_tokenizer(checkpoint)
    require_encode()
    from transformers import AutoTokenizer, PreTrainedTokenizerFast  # imports torch, which takes seconds

    try:
        kind = AutoTokenizer if (checkpoint / "config.json").is_file() else PreTrainedTokenizerFast
        loaded = kind.from_pretrained(str(checkpoint), trust_remote_code=False)
    except ImportError as error:
        reason = str(error).splitlines()[0]
        if any(name in reason for name in MECAB_NAMES):
            raise CaiError(f"{checkpoint}: its tokenizer needs MeCab: {install_command('japanese')}") from None
        raise CaiError(f"{checkpoint}: {NO_FAST_TOKENIZER} ({reason})") from None
    except Exception as error:  # of many kinds; the library tokenizers raises plain exceptions
        if "trust_remote_code" in str(error):
            raise own_code_error(checkpoint) from None
        raise CaiError(f"{checkpoint}: its tokenizer cannot be read ({error})") from None
    if loaded.is_fast and not (checkpoint / "tokenizer.json").is_file():
        # The library accepts special tokens alone as a vocabulary.
        require_tokenizer(checkpoint, {*loaded.vocab_files_names.values()} - {"tokenizer.json"})
    return loaded


def _load(checkpoint: Path) -> Any:
    """A checkpoint's tokenizer, without transformers where that is the same. Raises CaiError as load_tokenizer does."""
    has_transformers = find_spec("transformers")
    try:
        plain = _Plain(checkpoint)
        if (not plain.is_bert and not has_transformers) or plain.is_as_in_transformers():
            return plain
    except (CaiError, LookupError, TypeError, AttributeError):
        if not has_transformers:
            raise
    return load_tokenizer(checkpoint)


@lru_cache(maxsize=4)  # runs are prepared several times, and a tokenizer of a hundred languages takes a second to read
def count_pieces(checkpoint: Path, texts: tuple[str, ...]) -> int:
    """The number of tokens of texts without special ones. Reads only tokenizer.json, if it can, because load_tokenizer
    takes seconds; raises CaiError as that does."""
    try:
        backend = Backend.from_file(str(checkpoint / "tokenizer.json"))
    except Exception:  # of many kinds, see load_tokenizer
        return sum(map(len, Tokenizer(checkpoint).encode(texts, None, special=False)))
    backend.no_padding()
    backend.no_truncation()
    return sum(map(len, backend.encode_batch_fast(texts, add_special_tokens=False)))


class TokenIds(NamedTuple):
    """The token ids of texts, int32, by the position of a text. Blank texts have none."""

    ids: dict[int, np.ndarray]
    max_length: int  # tokens per text at most
    names: Sequence[str]  # of all texts, in error messages

    @property
    def padded(self) -> int:
        """The number of tokens, with padding."""
        return sum(-(-len(ids) // PAD_MULTIPLE) * PAD_MULTIPLE for ids in self.ids.values())


class Tokenizer:
    """A checkpoint's tokenizer, and the names of tokens in indexes."""

    def __init__(self, checkpoint: Path):
        loaded = _load(checkpoint)
        self._is_fast = loaded.is_fast
        self.backend = loaded.backend_tokenizer if self._is_fast else _backend(checkpoint, loaded)
        self.backend.no_padding()
        # Threads share the truncation. A thread that changes it holds the GIL that _PythonPreTokenizer waits for.
        self._lock = Lock()
        self._truncation_side = loaded.truncation_side
        self._size = max(self.ids.values()) + 1  # some ids may have no token
        self.pad_id: int = loaded.pad_token_id or 0
        self.unknown_id: int | None = loaded.unk_token_id

    def __len__(self) -> int:
        return self._size

    @property
    def settings(self) -> dict[str, Any]:
        """The contents of tokenizer.json; empty for a tokenizer written in Python."""
        return json.loads(self.backend.to_str()) if self._is_fast else {}

    @cached_property
    def ids(self) -> dict[str, int]:
        return self.backend.get_vocab(with_added_tokens=True)

    @cached_property
    def terms(self) -> list[str]:
        """The name of each entry in an index: the token, or `[id]` for tokens that are empty, have white space, or look
        like a word of BM25; `[[id]]` if `[id]` is itself a token."""
        vocabulary = self.ids
        usable = {i: token for token, i in vocabulary.items() if token.split() == [token] and "\x01" not in token}
        terms = []
        for i in range(len(self)):
            term = usable.get(i, WORD)
            if term.startswith((WORD, GRAM)):
                term = f"[{i}]"
                while term in vocabulary:
                    term = f"[{term}]"
            terms.append(term)
        return terms

    @cached_property
    def vocabulary(self) -> str:
        """A digest of the terms. Vectors and weights (vocabulary,) are compatible if their digests are equal."""
        return digest(self.terms)

    def encode(self, texts: Sequence[str], max_length: int | None, special: bool = True) -> list[list[int]]:
        """Token ids of each text, with or without special tokens, truncated to `max_length` unless that is None."""
        return [encoding.ids for encoding in self._encodings(texts, max_length, special)]

    def pieces(self, word: str) -> list[str]:
        """The terms of a word's tokens, without special tokens."""
        return [self.terms[id] for id in self.encode([word], None, special=False)[0]]

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """The number of tokens of each text, special tokens included."""
        return [len(encoding) for encoding in self._encodings(texts)]

    def token_ids(
        self, texts: Sequence[str], max_length: int, prompt: str = "", names: Sequence[str] | None = None
    ) -> "TokenIds":
        """The first `max_length` tokens of every text after the prompt, special tokens included. `names` are by default
        the texts. Raises CaiError for a prompt that leaves no room."""
        if prompt and self.prompt_tokens(prompt) + self.special_tokens[1] >= max_length:
            raise CaiError(
                f"the prompt {prompt[:NAME_LENGTH]!r} fills the {max_length} tokens that are read: raise "
                "max_document_length or max_query_length, or shorten it"
            )
        nonblank = [position for position, text in enumerate(texts) if text.strip()]
        encodings = self._encodings([prompt + texts[position] for position in nonblank], max_length)
        ids = {position: np.array(each.ids, np.int32) for position, each in zip(nonblank, encodings, strict=True)}
        return TokenIds(ids, max_length, names or texts)

    @cached_property
    def special_tokens(self) -> tuple[int, int]:
        """The numbers of special tokens before and after a text."""
        with self._lock:
            self.backend.no_truncation()
            special = self.backend.encode("a").special_tokens_mask
        return special.index(0), special[::-1].index(0)

    def prompt_tokens(self, prompt: str) -> int:
        """The number of tokens before a text that follows this prompt, special tokens included."""
        return self.special_tokens[0] + len(self.encode([prompt], None, special=False)[0])

    def _encodings(self, texts: Sequence[str], max_length: int | None = None, special: bool = True) -> Iterator[Any]:
        for part in text_batches(texts, len):
            with self._lock:
                if max_length is None:
                    self.backend.no_truncation()
                else:
                    self.backend.enable_truncation(max_length, direction=self._truncation_side)
                encodings = self.backend.encode_batch_fast(part, add_special_tokens=special)
            yield from encodings

    def bag_of_words(self, texts: Sequence[str], max_length: int) -> csr_matrix:
        """Counts of the word pieces of each text: SPLADE-Doc's queries, (len(texts), vocabulary)."""
        # Leave room for [CLS] and [SEP], so that a bag has as many word pieces as the model would read.
        tokens = self.encode(texts, max_length - 2, special=False)
        indptr = np.cumsum([0] + [len(t) for t in tokens])
        indices = np.array([id for t in tokens for id in t], np.int32)
        counts = csr_matrix((np.ones(len(indices), np.float32), indices, indptr), shape=(len(texts), len(self)))
        counts.sum_duplicates()
        return counts


def text_batches[T](items: Iterable[T], length: Callable[[T], int], max_items: int = BATCH_TEXTS) -> Iterator[list[T]]:
    """Batches of at most `max_items` items, with at most BATCH_CHARACTERS in all unless a single item has more."""
    batch: list[T] = []
    total = 0
    for item in items:
        size = length(item)
        if batch and (len(batch) == max_items or total + size > BATCH_CHARACTERS):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size
    if batch:
        yield batch
