"""What a model reads of texts: their first tokens, or all tokens in windows."""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import batched
from typing import Self

import numpy as np

from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.tokenizer import Tokenizer

NAME = 200  # characters of a name in error messages
Done = Callable[[int], object]  # called with the number of texts that have been processed
TOKENIZED = 256  # texts that are tokenized at a time


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
    ) -> Self:
        """The first `max_length` tokens of every text; with `overlap` all tokens, in windows of that length.

        Windows of a text have `overlap` tokens in common, the last two of them more if need be: a shorter one would
        have too little context. `names` are ids, or else the texts. Raises CaiError if `overlap` leaves no room.
        """
        full = [position for position, text in enumerate(texts) if text.strip()]
        counts = np.zeros(len(texts), np.int64)
        first: list[Sequence[int]] = []
        further: list[Sequence[int]] = []
        for part in batched(full, TOKENIZED):
            tokens = tokenizer.encode([texts[i] for i in part], max_length if overlap is None else None)
            for position, ids in zip(part, tokens, strict=True):
                windows = [ids] if overlap is None else _cut(ids, tokenizer.special_tokens, max_length, overlap)
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
