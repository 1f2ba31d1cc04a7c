"""Pseudo queries: queries made of a collection's own documents, without labels.

The kinds are mixed, since nobody knows what people will type:

title     the title of a document, if it is at most a third of it
span      5 to 12 consecutive words, at most a third of the document, wherever its sentences end
phrases   2 to 5 rare words of the document, in its order
dropped   a title or a span without some of its words
question  a question about one or two phrases of a document; these only judge, so that what judges is not only what has
          trained

The document that a query was made of is its source. SPLADE trains on sources with the query's words: it matches words,
and would unlearn that without them. For the same reason, it trains on the passage of a long document that has most of
the query's words. A source without its query's words is its remainder: a dense encoder trains on it, and judges search
for it.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import bm25s

from cai_pyserini.collection.copies import PUNCTUATION, plain
from cai_pyserini.collection.spans import SHARE, passage_starts, random_span

PHRASES = (2, 5)  # the least and largest number of words of `phrases`
CHOICE = 4  # the rarest of this many times as many words become phrases
KEPT = 0.7  # the share of words that `dropped` keeps
PASSAGE, STRIDE = 70, 35  # words of a passage, and between the starts of two
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
    """At most one query of each kind for every document."""
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
    """A question about each of the documents with these numbers, if it has enough words that are no stop words."""
    for number in documents:
        words = [word.strip(PUNCTUATION).lower() for word in contents[number].split()]
        starts = [place for place, word in enumerate(words) if _says_something(word)]
        question = draw.choice(QUESTIONS)
        count = question.count("{}")
        if len(starts) >= SHARE * count:
            phrases = (words[start : start + draw.randint(1, 2)] for start in draw.sample(starts, count))
            text = question.format(*(" ".join(filter(_says_something, phrase)) for phrase in phrases))
            yield PseudoQuery(number, text, "question")


def _says_something(word: str) -> bool:
    return len(word) > 1 and word not in STOP_WORDS


def remainder(text: str, query: str) -> str:
    """A text without a query: without the passage that equals the query, or else without the query's words."""
    if query in text:
        return text.replace(query, " ", 1)
    words = {plain(word) for word in query.split()}
    return " ".join(word for word in text.split() if plain(word) not in words)


def passage(text: str, query: str) -> str:
    """The passage of 70 words that has most of a query's words; ties keep the earlier passage."""
    words, wanted = text.split(), {plain(word) for word in query.split()}
    starts = passage_starts(len(words), PASSAGE, STRIDE)
    best = max(starts, key=lambda start: len(wanted.intersection(map(plain, words[start : start + PASSAGE]))))
    return " ".join(words[best : best + PASSAGE])


def _phrases(words: Sequence[str], frequencies: Counter[str], draw: random.Random) -> str:
    """Some of the rarest among a few words of a document, in its order."""
    count = min(draw.randint(*PHRASES), len(words) // SHARE)
    places = draw.sample(range(len(words)), min(CHOICE * count, len(words)))
    rarest = sorted(places, key=lambda place: frequencies[words[place].casefold()])[:count]
    return " ".join(words[place] for place in sorted(rarest))


def _dropped(words: Sequence[str], draw: random.Random) -> str:
    """Words without some of them; empty if none or too few would be left out."""
    kept = [word for word in words if draw.random() < KEPT]
    return " ".join(kept) if 1 < len(kept) < len(words) else ""
