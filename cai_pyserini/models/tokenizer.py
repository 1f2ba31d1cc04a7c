"""Text to token ids, all or in windows, and the names of tokens in indexes."""

import json
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, Self

import numpy as np
from scipy.sparse import csr_matrix
from tokenizers import NormalizedString, PreTokenizedString
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import PreTokenizer
from tokenizers.processors import BertProcessing, TemplateProcessing

from cai_pyserini.core.artifact import digest
from cai_pyserini.core.config import WORD
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.packages import install_command
from cai_pyserini.models.checkpoint import require_own_code, untrusted

NAME = 200  # characters of a name in error messages
TOKENIZED = 256  # texts that are tokenized at a time
CHARACTERS = 1 << 20  # and characters, of which each takes about 100 bytes, unless a single text has more
PER_TOKEN = 8  # characters that are tokenized at first for each token that is read
# Normalizers and pre-tokenizers by which what comes before a space does not depend on what comes after it.
LOCAL = {"NFC", "NFD", "NFKC", "NFKD", "BertNormalizer", "Lowercase", "StripAccents", "Strip", "Nmt", "Precompiled"}
LOCAL |= {"Prepend", "Punctuation", "Digits"}
SPACES = (" {2,}", r"\s+", r"\s{2,}|[\n\r\t]")  # patterns that normalizers replace by a space
SPLITTERS = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit", "Metaspace", "ByteLevel"}  # and which split there
PYTHON = "its tokenizer is written in Python, without a fast version (tokenizer.json): choose a checkpoint that has one"
MECAB_NAMES = ("fugashi", "unidic_lite", "ipadic")  # packages of the extra `japanese`
Done = Callable[[int], object]  # called with the number of texts that have been processed

os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


class _Tokens:
    """A pre-tokenizer whose words are the tokens of a tokenizer that is written in Python."""

    def __init__(self, loaded: Any):
        self._tokenize = loaded.tokenize

    def pre_tokenize(self, text: PreTokenizedString) -> None:
        text.split(lambda _, part: [NormalizedString(token) for token in self._tokenize(str(part))])


def _backend(checkpoint: Path, loaded: Any) -> Backend:
    """A backend with the ids of a BertJapaneseTokenizer. Raises CaiError for another tokenizer in Python."""
    from transformers import BertJapaneseTokenizer  # which few need

    if not isinstance(loaded, BertJapaneseTokenizer) or loaded.subword_tokenizer_type == "sentencepiece":
        raise CaiError(f"{checkpoint}: {PYTHON}")
    backend = Backend(WordLevel(loaded.get_vocab(), loaded.unk_token))
    backend.pre_tokenizer = PreTokenizer.custom(_Tokens(loaded))
    sep, cls = ((token, loaded.convert_tokens_to_ids(token)) for token in (loaded.sep_token, loaded.cls_token))
    backend.post_processor = BertProcessing(sep, cls)
    return backend


def require_tokenizer(checkpoint: Path, needed: Set[str] = frozenset()) -> None:
    """Raise CaiError for a folder without a tokenizer, or without the files that are `needed` for its kind."""
    files = {path.name for path in checkpoint.glob("*")}
    kinds = (name in ("tokenizer.json", "vocab.txt", "merges.txt") or name.endswith(".model") for name in files)
    if not any(kinds) or not needed <= files:
        raise CaiError(f"{checkpoint}: no tokenizer (tokenizer.json) in this folder")


def load_tokenizer(checkpoint: Path, trust_remote_code: bool = False, special: bool = True) -> Any:
    """The tokenizer of transformers in a checkpoint, which is one without a transformer if it has no `special` tokens.
    Raises CaiError for one that is missing or cannot be read."""
    require_tokenizer(checkpoint)
    if trust_remote_code:
        require_own_code(checkpoint)
    from transformers import AutoTokenizer, PreTrainedTokenizerFast  # imports torch, which takes seconds

    try:
        is_alone = not special or not (checkpoint / "config.json").is_file()  # without a transformer
        kind = PreTrainedTokenizerFast if is_alone else AutoTokenizer
        loaded = kind.from_pretrained(str(checkpoint), trust_remote_code=trust_remote_code)
    except ImportError as error:
        reason = str(error).splitlines()[0]
        if any(name in reason for name in MECAB_NAMES):
            raise CaiError(f"{checkpoint}: its tokenizer needs MeCab: {install_command('japanese')}") from None
        raise CaiError(f"{checkpoint}: {PYTHON} ({reason})") from None
    except Exception as error:  # of many kinds; the library tokenizers raises plain exceptions
        if "trust_remote_code" in str(error):
            raise untrusted(checkpoint) from None
        raise CaiError(f"{checkpoint}: its tokenizer cannot be read ({error})") from None
    if loaded.is_fast and not (checkpoint / "tokenizer.json").is_file():
        # The library takes special tokens alone for a vocabulary.
        require_tokenizer(checkpoint, {*loaded.vocab_files_names.values()} - {"tokenizer.json"})
    return loaded


class Tokenizer:
    """The tokenizer of a checkpoint, fast or BertJapaneseTokenizer, and the names of its entries in indexes and JSON
    vectors.

    Without `special`, texts get no special tokens.
    """

    def __init__(self, checkpoint: Path, trust_remote_code: bool = False, special: bool = True):
        loaded = load_tokenizer(checkpoint, trust_remote_code, special)
        self._is_fast = loaded.is_fast
        self.backend = loaded.backend_tokenizer if self._is_fast else _backend(checkpoint, loaded)
        self.backend.no_padding()
        # Truncation is shared by threads. One that changes it holds the GIL, for which _Tokens waits: a deadlock.
        self._lock = Lock()
        self._cut = loaded.truncation_side
        if not special:
            self.backend.post_processor = TemplateProcessing(single="$A")
        self._size = max(self.ids.values()) + 1  # some numbers may have no token
        self.pad_id: int = loaded.pad_token_id or 0
        self.unknown_id: int | None = loaded.unk_token_id

    def __len__(self) -> int:
        return self._size

    @property
    def settings(self) -> dict[str, Any]:
        """The tokenizer as a tokenizer.json describes it; empty for one that is written in Python."""
        return json.loads(self.backend.to_str()) if self._is_fast else {}

    @cached_property
    def ids(self) -> dict[str, int]:
        return self.backend.get_vocab(with_added_tokens=True)

    @cached_property
    def terms(self) -> list[str]:
        """The name of each entry in an index: the token, or `[id]` where white space or emptiness would change it, or
        where it could be taken for a word of BM25; `[[id]]` where `[id]` is itself a token."""
        vocabulary = self.ids
        fit = {i: token for token, i in vocabulary.items() if token.split() == [token] and "\x01" not in token}
        terms = []
        for i in range(len(self)):
            term = fit.get(i, WORD)
            if term.startswith(WORD):
                term = f"[{i}]"
                while term in vocabulary:
                    term = f"[{term}]"
            terms.append(term)
        return terms

    @cached_property
    def vocabulary(self) -> str:
        """A digest of the terms. Vectors and weights (vocabulary,) fit together where theirs are equal."""
        return digest(self.terms)

    def encode(self, texts: Sequence[str], max_length: int | None, special: bool = True) -> list[list[int]]:
        """Token ids of each text, with or without special tokens, truncated to `max_length` unless that is None."""
        if max_length is None or all(len(text) <= PER_TOKEN * max_length for text in texts) or not self._is_local:
            return [encoding.ids for encoding in self._encodings(texts, max_length, special)]
        ids: list[list[int]] = [[]] * len(texts)
        left, width = [*range(len(texts))], PER_TOKEN * max_length
        while left:
            parts = [_beginning(texts[i], width) for i in left]
            for i, encoding in zip(left, self._encodings(parts, max_length, special), strict=True):
                ids[i] = encoding.ids
            pairs = zip(left, parts, strict=True)
            left = [i for i, part in pairs if len(ids[i]) < max_length and len(part) < len(texts[i])]
            width *= PER_TOKEN
        return ids

    @cached_property
    def _is_local(self) -> bool:
        """Whether the first tokens of a text are those of its beginning, up to a space after a letter or digit."""
        added = (token.content for token in self.backend.get_added_tokens_decoder().values())
        if not self._is_fast or self._cut != "right" or any(token.split() not in ([], [token]) for token in added):
            return False
        try:
            parts = _components(self.backend.pre_tokenizer, "pretokenizers")
            normalizers = _components(self.backend.normalizer, "normalizers")
        except Exception:  # of no other class, where a part is written in Python
            return False
        others = [*normalizers, *(part for part in parts if not _splits(part))]
        return any(map(_splits, parts)) and all(map(_is_local, others))

    def pieces(self, word: str) -> list[str]:
        """The terms of a word, without special tokens."""
        return [self.terms[id] for id in self.encode([word], None, special=False)[0]]

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """The number of tokens of each text, special tokens included."""
        return [len(encoding) for encoding in self._encodings(texts)]

    @cached_property
    def special_tokens(self) -> tuple[int, int]:
        """The numbers of special tokens before and after a text."""
        with self._lock:
            self.backend.no_truncation()
            special = self.backend.encode("a").special_tokens_mask
        return special.index(0), special[::-1].index(0)

    def prompt_tokens(self, prompt: str) -> int:
        """The number of tokens before a text that comes after this prompt, special tokens included."""
        return self.special_tokens[0] + len(self.encode([prompt], None, special=False)[0])

    def _encodings(self, texts: Sequence[str], max_length: int | None = None, special: bool = True) -> Iterator[Any]:
        for part in by_characters(texts, len):
            with self._lock:
                if max_length is None:
                    self.backend.no_truncation()
                else:
                    self.backend.enable_truncation(max_length, direction=self._cut)
                encodings = self.backend.encode_batch_fast(part, add_special_tokens=special)
            yield from encodings

    def bag_of_words(self, texts: Sequence[str], max_length: int) -> csr_matrix:
        """Counts of the word pieces of each text: SPLADE-Doc's queries, (len(texts), vocabulary)."""
        # The model would read [CLS] and [SEP] too, so that many fewer word pieces.
        tokens = self.encode(texts, max_length - 2, special=False)
        indptr = np.cumsum([0] + [len(t) for t in tokens])
        indices = np.array([id for t in tokens for id in t], np.int32)
        counts = csr_matrix((np.ones(len(indices), np.float32), indices, indptr), shape=(len(texts), len(self)))
        counts.sum_duplicates()
        return counts


def by_characters[T](items: Iterable[T], length: Callable[[T], int], most: int = TOKENIZED) -> Iterator[list[T]]:
    """Parts of items, with up to `most` of them, and up to CHARACTERS of text, or a single one with more."""
    part: list[T] = []
    total = 0
    for item in items:
        size = length(item)
        if part and (len(part) == most or total + size > CHARACTERS):
            yield part
            part, total = [], 0
        part.append(item)
        total += size
    if part:
        yield part


def _beginning(text: str, width: int) -> str:
    """The first `width` characters of a text, or fewer, up to a space after a letter or digit; all of a short one."""
    if len(text) <= width:
        return text
    end = text.rfind(" ", 0, width)
    while end > 0 and not text[end - 1].isalnum():
        end = text.rfind(" ", 0, end)
    return text[: max(end, 0)]


def _components(of: Any, name: str) -> list[dict[str, Any]]:
    """The settings of a normalizer or pre-tokenizer, or of those in a sequence, a list of this name."""
    settings: dict[str, Any] = json.loads(of.__getstate__()) if of else {"type": "Sequence", name: []}
    return [*settings[name]] if settings["type"] == "Sequence" else [settings]


def _splits(component: Mapping[str, Any]) -> bool:
    """Whether a pre-tokenizer splits before a space."""
    return component["type"] in SPLITTERS and bool(component.get("split", component.get("use_regex", True)))


def _is_local(component: Mapping[str, Any]) -> bool:
    """Whether a normalizer or pre-tokenizer makes the same of what comes before a space, whatever comes after it."""
    if component["type"] != "Replace":
        return component["type"] in LOCAL
    pattern = component["pattern"]
    if "String" in pattern:
        return not any(map(str.isspace, pattern["String"]))
    return pattern["Regex"] in SPACES and component["content"] == " "


@dataclass(frozen=True)
class Windows:
    """The windows of texts: first the first window of every text, in order, then all others. Blank texts have none."""

    tokens: list[Sequence[int]]  # token ids, special tokens included
    owners: np.ndarray  # the position of each window's text, int64 (windows,)
    counts: np.ndarray  # the number of windows of each text, int64 (texts,)
    max_length: int  # tokens per window at most
    names: Sequence[str]  # what error messages call the texts

    @classmethod
    def of(
        cls,
        texts: Sequence[str],
        tokenizer: Tokenizer,
        max_length: int,
        overlap: int | None = None,
        names: Sequence[str] | None = None,
        prompt: str = "",
    ) -> Self:
        """The first `max_length` tokens of every text; with `overlap` all tokens, in windows of that length.

        Windows of a text have `overlap` tokens in common, the last two of them more if need be: a shorter one would
        have too little context. `names` are ids, or else the texts. Each window has the `prompt`. Raises
        CaiError if `overlap` or `prompt` leaves no room.
        """
        special = (0, 0)
        if prompt or overlap is not None:
            special = tokenizer.prompt_tokens(prompt), tokenizer.special_tokens[1]
        if prompt and sum(special) >= max_length:
            raise CaiError(
                f"the prompt {prompt[:NAME]!r} fills the {max_length} tokens that are read: raise max_document_length "
                "or max_query_length, or shorten it"
            )
        full = [position for position, text in enumerate(texts) if text.strip()]
        counts = np.zeros(len(texts), np.int64)
        first: list[Sequence[int]] = []
        further: list[Sequence[int]] = []
        for part in by_characters(full, lambda position: len(texts[position])):
            tokens = tokenizer.encode([prompt + texts[i] for i in part], max_length if overlap is None else None)
            for position, ids in zip(part, tokens, strict=True):
                windows = [ids] if overlap is None else _cut(ids, special, max_length, overlap)
                first.append(windows[0])
                further += windows[1:]
                counts[position] = len(windows)
        owners = np.repeat(np.arange(len(texts)), np.maximum(counts - 1, 0))
        return cls(
            first + further, np.concatenate([np.array(full, np.int64), owners]), counts, max_length, names or texts
        )


def _cut(ids: Sequence[int], special: tuple[int, int], max_length: int, overlap: int) -> list[Sequence[int]]:
    """The windows of a text's tokens, each with the `special` ones that come before and after the text."""
    before, after = special
    room = max_length - before - after
    if overlap >= room:
        raise CaiError(f"windows of {max_length} tokens cannot overlap by {overlap}: set a smaller overlap")
    tokens = array("i", ids)  # a tenth of the memory of a list
    end = len(tokens) - after
    last = max(end - room, before)
    starts = [*range(before, last, room - overlap), last]
    return [tokens[:before] + tokens[start : min(start + room, end)] + tokens[end:] for start in starts]
