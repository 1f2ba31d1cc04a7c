"""Pseudo queries, which are made from a collection's own documents, without labels.

They are of several kinds, because real queries are unknown:

title     the title of a document, if it is at most a third of it
span      5 to 12 consecutive words, at most a third of the document, across sentence boundaries
phrases   2 to 5 rare words of the document, in its order
dropped   a title or a span without some of its words
question  a question about one or two phrases of a document; only held out, as a kind that the training did not see

The source of a query is the document that it was made from. SPLADE is trained on sources with the query's words: it
matches words, and would unlearn that without them. For the same reason, a long document is represented by the passage
with the most query words. The remainder of a source is what is left without the query's words: dense encoders are
trained on it, and held-out queries search for it.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import bm25s

from cai_pyserini.collections.copies import PUNCTUATION, plain
from cai_pyserini.collections.spans import SHARE, random_span

KINDS = ("title", "span", "phrases", "dropped", "question")
PHRASES = (2, 5)  # minimum and maximum number of words in `phrases`
PHRASE_POOL = 4  # words drawn per word of `phrases`, which takes the rarest of them
KEPT_SHARE = 0.7  # the share of words that `dropped` keeps
PASSAGE, STRIDE = 70, 35  # words per passage, and between the starts of neighbouring passages
STOP_WORDS = frozenset(bm25s.stopwords.STOPWORDS_EN)
QUESTIONS = (
    "what is {}",
    "what is known about {}",
    "how does {} affect {}",
    "what are the effects of {} on {}",
    "which {} are used for {}",
    "is there a relation between {} and {}",
    "why is {} important in {}",
    "information on {} and {}",
)


class PseudoQuery(NamedTuple):
    """A pseudo query and the number of its source."""

    document: int
    text: str
    kind: str


def pseudo_queries(titles: Sequence[str], contents: Sequence[str], draw: random.Random) -> Iterator[PseudoQuery]:
    """Make at most one query of each kind for every document."""
    documents = [[word.strip(PUNCTUATION) for word in text.split()] for text in contents]
    frequencies = Counter(word.casefold() for words in documents for word in set(words))
    for number, (title, text, words) in enumerate(zip(titles, contents, documents, strict=True)):
        span = random_span(text, draw) or ""
        queries = {
            "title": title if len(title.split()) <= len(words) // SHARE else "",
            "span": span,
            "phrases": _phrases(words, frequencies, draw),
            "dropped": _dropped(draw.choice([title, span]).split(), draw),
        }
        for kind, query in queries.items():
            if query.strip():
                yield PseudoQuery(number, query, kind)


def questions(documents: Iterable[int], contents: Sequence[str], draw: random.Random) -> Iterator[PseudoQuery]:
    """Make a question about each document, by number, that has enough words besides stop words."""
    for number in documents:
        words = [word.strip(PUNCTUATION).lower() for word in contents[number].split()]
        starts = [position for position, word in enumerate(words) if _is_content_word(word)]
        question = draw.choice(QUESTIONS)
        count = question.count("{}")
        if len(starts) >= SHARE * count:
            phrases = (words[start : start + draw.randint(1, 2)] for start in draw.sample(starts, count))
            text = question.format(*(" ".join(filter(_is_content_word, phrase)) for phrase in phrases))
            yield PseudoQuery(number, text, "question")


def _is_content_word(word: str) -> bool:
    return len(word) > 1 and word not in STOP_WORDS


def remainder(text: str, query: str) -> str:
    """Remove a query from a text: the passage that equals it, or else all of its words."""
    if query in text:
        return text.replace(query, " ", 1)
    words = {plain(word) for word in query.split()}
    return " ".join(word for word in text.split() if plain(word) not in words)


def passage(text: str, query: str) -> str:
    """The passage of 70 words with the most query words; ties keep the earlier passage."""
    words, query_words = text.split(), {plain(word) for word in query.split()}
    last = max(len(words) - PASSAGE, 0)
    starts = [*range(0, last, STRIDE), last]
    best = max(starts, key=lambda start: len(query_words.intersection(map(plain, words[start : start + PASSAGE]))))
    return " ".join(words[best : best + PASSAGE])


def _phrases(words: Sequence[str], frequencies: Counter[str], draw: random.Random) -> str:
    """The rarest of some random words of a document, in its order."""
    count = min(draw.randint(*PHRASES), len(words) // SHARE)
    drawn = draw.sample(range(len(words)), min(PHRASE_POOL * count, len(words)))
    rarest = sorted(drawn, key=lambda position: frequencies[words[position].casefold()])[:count]
    return " ".join(words[position] for position in sorted(rarest))


def _dropped(words: Sequence[str], draw: random.Random) -> str:
    """Drop some of the words; empty if none is dropped, or fewer than two remain."""
    remaining = [word for word in words if draw.random() < KEPT_SHARE]
    return " ".join(remaining) if 1 < len(remaining) < len(words) else ""
