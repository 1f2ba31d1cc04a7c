"""Text to token ids, and the names of tokens in indexes."""

import json
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import batched
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from cai_pyserini.core.artifact import digest
from cai_pyserini.core.errors import CaiError

WORD = "bm25:"  # begins the name of a word of BM25 in an index, and of no token

os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


class Tokenizer:
    """The fast tokenizer of a checkpoint, and the names of its entries in indexes and JSON vectors."""

    def __init__(self, checkpoint: Path):
        if not any((checkpoint / name).is_file() for name in ("tokenizer.json", "vocab.txt", "tokenizer.model")):
            raise CaiError(f"{checkpoint}: no tokenizer (tokenizer.json) in this folder")
        from transformers import AutoTokenizer  # imports torch, which takes seconds

        try:
            loaded = AutoTokenizer.from_pretrained(str(checkpoint), trust_remote_code=False)
        except Exception as error:  # of many kinds; the library tokenizers raises plain exceptions
            raise CaiError(f"{checkpoint}: its tokenizer cannot be read ({error})") from None
        if not loaded.is_fast:
            raise CaiError(f"{checkpoint}: its tokenizer has no fast version (tokenizer.json)")
        self._backend = loaded.backend_tokenizer
        self._backend.no_padding()
        self.pad_id: int = loaded.pad_token_id or 0
        self.has_types = "token_type_ids" in loaded.model_input_names

    def __len__(self) -> int:
        return self._backend.get_vocab_size(with_added_tokens=True)

    @property
    def settings(self) -> dict[str, Any]:
        """The tokenizer as a tokenizer.json describes it."""
        settings: dict[str, Any] = json.loads(self._backend.to_str())
        return settings

    @cached_property
    def terms(self) -> list[str]:
        """The name of each entry in an index: the token, or `[id]` where white space or emptiness would change it, or
        where it could be taken for a word of BM25; `[[id]]` where `[id]` is itself a token."""
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
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
        return [encoding.ids for encoding in self._encodings(texts, max_length, special)]

    def pieces(self, word: str) -> list[str]:
        """The terms of a word, without special tokens."""
        return [self.terms[id] for id in self.encode([word], None, special=False)[0]]

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """The number of tokens of each text, special tokens included."""
        return [len(encoding) for encoding in self._encodings(texts)]

    @cached_property
    def special_tokens(self) -> tuple[int, int]:
        """The numbers of special tokens before and after a text."""
        self._backend.no_truncation()
        special = self._backend.encode("a").special_tokens_mask
        return special.index(0), special[::-1].index(0)

    def _encodings(self, texts: Sequence[str], max_length: int | None = None, special: bool = True) -> Iterator[Any]:
        if max_length is None:
            self._backend.no_truncation()
        else:
            self._backend.enable_truncation(max_length)
        for part in batched(texts, 256):  # the encodings are large: a few at a time
            yield from self._backend.encode_batch_fast(list(part), add_special_tokens=special)

    def pairs(self, first: Sequence[str], second: Sequence[str], max_length: int) -> list[Any]:
        """Encodings (`ids`, `type_ids`) of pairs of texts with special tokens, the longer text truncated first."""
        self._backend.enable_truncation(max_length)
        return self._backend.encode_batch_fast(list(zip(first, second, strict=True)))

    def bag_of_words(self, texts: Sequence[str], max_length: int) -> csr_matrix:
        """Counts of the word pieces of each text: SPLADE-Doc's queries, (len(texts), vocabulary)."""
        # The model would read [CLS] and [SEP] too, so that many fewer word pieces.
        tokens = self.encode(texts, max_length - 2, special=False)
        indptr = np.cumsum([0] + [len(t) for t in tokens])
        indices = np.array([id for t in tokens for id in t], np.int32)
        counts = csr_matrix((np.ones(len(indices), np.float32), indices, indptr), shape=(len(texts), len(self)))
        counts.sum_duplicates()
        return counts
