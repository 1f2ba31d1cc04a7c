"""WordPiece vocabularies from a table of word counts.

The vocabulary is trained as the tokenizers library trains it: all characters, first and continuing ("##x"), then
repeated merges of the most frequent pair of pieces. Ties are broken by the order of the pieces, so the same words give
the same vocabulary, and a smaller vocabulary is the beginning of every larger one. Training works on word counts: its
cost depends on the number of different words, not on the size of the corpus.
"""

import heapq
import itertools
import multiprocessing
import os
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial

import numpy as np
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordPiece
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

from cai_pyserini.core.errors import CaiError

PREFIX = "##"
BATCH = 1 << 13  # texts that a process counts at a time


def vocabulary_of(backend: Backend, name: str) -> tuple[dict[str, int], str]:
    """The vocabulary of a WordPiece tokenizer, token -> id, and its token for words that it cannot spell."""
    model = backend.model
    if not isinstance(model, WordPiece) or model.continuing_subword_prefix != PREFIX:
        raise CaiError(
            f"{name}: its tokenizer is {type(model).__name__}; only WordPiece vocabularies (BERT's) can be expanded"
        )
    return backend.get_vocab(with_added_tokens=False), model.unk_token


def count_words(texts: Iterable[str], backend: Backend) -> Counter[str]:
    """How often each word occurs, split by a tokenizer's normalizer and pre-tokenizer.

    More than one batch of texts is counted by as many processes as there are processors.
    """
    batches = itertools.batched(texts, BATCH)
    count = partial(_count, backend.normalizer, backend.pre_tokenizer)
    counts = count(next(batches, ()))
    if (second := next(batches, None)) is None:
        return counts
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting: deque[Future[Counter[str]]] = deque()
        for batch in itertools.chain([second], batches):
            waiting.append(pool.submit(count, batch))
            if len(waiting) > 2 * (os.cpu_count() or 1):  # reading must not run away from counting
                counts.update(waiting.popleft().result())
        for future in waiting:
            counts.update(future.result())
    return counts


def _count(normalizer: Normalizer | None, pre_tokenizer: PreTokenizer, texts: Sequence[str]) -> Counter[str]:
    normalize = normalizer.normalize_str if normalizer else str
    return Counter(word for text in texts for word, _ in pre_tokenizer.pre_tokenize_str(normalize(text)))


def characters(words: Iterable[str]) -> list[str]:
    """The pieces that training starts from, in order: continuing characters, then all characters."""
    words = list(words)
    return sorted({PREFIX + c for word in words for c in word[1:]}) + sorted({c for word in words for c in word})


def train(counts: Mapping[str, int]) -> Iterator[str]:
    """The pieces in the order in which training makes them, until every word is one piece."""
    vocabulary = characters(counts)
    yield from vocabulary
    ids = {piece: i for i, piece in enumerate(vocabulary)}
    words = [([ids[word[0]]] + [ids[PREFIX + c] for c in word[1:]], count) for word, count in counts.items()]
    pairs: defaultdict[tuple[int, int], int] = defaultdict(int)
    places: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    for place, (pieces, count) in enumerate(words):
        for pair in itertools.pairwise(pieces):
            pairs[pair] += count
            places[pair].add(place)
    heap = [(-count, pair) for pair, count in pairs.items()]
    heapq.heapify(heap)
    while heap:
        count, pair = heapq.heappop(heap)
        if pairs[pair] != -count:  # outdated: the count has changed since
            if pairs[pair]:
                heapq.heappush(heap, (-pairs[pair], pair))
            continue
        merged = vocabulary[pair[0]] + vocabulary[pair[1]].removeprefix(PREFIX)
        new = ids.setdefault(merged, len(vocabulary))
        if new == len(vocabulary):
            vocabulary.append(merged)
            yield merged
        grown: set[tuple[int, int]] = set()
        for place in sorted(places.pop(pair)):
            old, occurrences = words[place]
            pieces = _merge(old, pair, new)
            words[place] = pieces, occurrences
            for changed in itertools.pairwise(old):
                pairs[changed] -= occurrences
            for changed in itertools.pairwise(pieces):
                pairs[changed] += occurrences
                if new in changed:
                    places[changed].add(place)
                    grown.add(changed)
        for changed in grown:
            heapq.heappush(heap, (-pairs[changed], changed))


def _merge(pieces: list[int], pair: tuple[int, int], new: int) -> list[int]:
    merged = []
    i = 0
    while i < len(pieces):
        if tuple(pieces[i : i + 2]) == pair:
            merged.append(new)
            i += 2
        else:
            merged.append(pieces[i])
            i += 1
    return merged


def frequencies(words: Sequence[str], counts: np.ndarray, vocabulary: Mapping[str, int], unknown: str) -> np.ndarray:
    """How often each id of a vocabulary occurs, int64, if word i occurs counts[i] times.

    A word is split from left to right, each time into the longest piece that fits.
    """
    backend = Backend(WordPiece(dict(vocabulary), unk_token=unknown))
    total = np.zeros(max(vocabulary.values()) + 1, np.int64)
    for start in range(0, len(words), 1 << 15):
        part = slice(start, start + (1 << 15))
        ids = [encoding.ids for encoding in backend.encode_batch_fast(words[part], add_special_tokens=False)]
        weights = counts[part].repeat([len(i) for i in ids])
        np.add.at(total, np.concatenate(ids).astype(np.int64), weights)
    return total


def pieces_of(token: str, vocabulary: Mapping[str, int]) -> list[int] | None:
    """The ids of the pieces that a vocabulary splits a token into; None if it cannot spell it.

    The pieces of a continuing token ("##…") are all continuing.
    """
    rest = token.removeprefix(PREFIX)
    lead = PREFIX if token.startswith(PREFIX) and rest else ""
    rest = rest if lead else token
    ids = []
    while rest:
        end = next((end for end in range(len(rest), 0, -1) if lead + rest[:end] in vocabulary), None)
        if end is None:
            return None
        ids.append(vocabulary[lead + rest[:end]])
        rest, lead = rest[end:], PREFIX
    return ids
