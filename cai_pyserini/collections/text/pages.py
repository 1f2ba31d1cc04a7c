"""The words of printed pages: hyphens at the ends of lines, and lists of contents."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from operator import and_

BREAK = "\ufffe"  # a hyphen at the end of a line and the line break, as PDFium writes them
HYPHENS = re.compile(r"[\xad\u2010]\n(?=\w)")  # PDFium leaves these
BROKEN = re.compile(rf"[^\s{BREAK}]*(?:{BREAK}[^\s{BREAK}]*)+")
WORD = re.compile(r"\w+(?:-\w+)*")
BEGINNING, END = re.compile(r"\w*"), re.compile(r"\w{0,64}$")
ADDRESS = re.compile(r"\w[/\\@_]\w|://")

PART = re.compile(r"[^\W_]+")
LEADERS = re.compile(r"(?:\. ?){5,}")  # dots from a title to its page number
NUMBERS = re.compile(r"(?<=[\s,.])\d{1,4}(?: ?[,–-] ?\d{1,4})*$")  # page numbers at the end of a line
LONGEST_ENTRY = 200  # characters
FEWEST = 3  # entries of a list
RARE = 9  # pages with all words of an entry, at most, for it to tell how pages are numbered

Place = tuple[int, int]  # a page and a line of it
Entry = tuple[frozenset[str], list[int]]  # words, and numbers of pages


def joined(pages: Sequence[str]) -> list[str]:
    """Pages without hyphens at the ends of lines, which may be part of a compound or not.

    If only one of both forms is elsewhere on the pages, that is taken; else a hyphen stays in addresses, at numbers and
    capitals, and where languages do not divide words; and else there are both forms, since a word is found by either.
    """
    pages = [page.replace(f"{BREAK}\n", BREAK) for page in pages]
    pages = [HYPHENS.sub(BREAK, page) if "\xad\n" in page or "\u2010\n" in page else page for page in pages]
    if not any(BREAK in page for page in pages):
        return pages
    words, known = set[str](), set[str]()
    for page in pages:
        words.update(page.casefold().split())
    for word in WORD.findall(" ".join(word for word in words if BREAK not in word)):
        parts = word.split("-")
        known.update(parts, map("-".join, pairwise(parts)))
    return ["\n".join(_rejoined(line, known) for line in page.split("\n")) if BREAK in page else page for page in pages]


def _rejoined(line: str, known: set[str]) -> str:
    return BROKEN.sub(lambda broken: _joined(broken[0], known), line) if BREAK in line else line


def _joined(broken: str, known: set[str]) -> str:
    first, *others = broken.split(BREAK)
    word, compound = first, first
    for other in others:
        left, right = END.search(compound)[0], BEGINNING.match(other)[0]  # type: ignore[index]
        is_word, is_compound = (f"{left}{hyphen}{right}".casefold() in known for hyphen in ("", "-"))
        if is_word == is_compound:
            is_word = is_compound = True
            if not _is_divisible(left, right) or ADDRESS.search(broken):
                is_word = False
        word += other if is_word else f"-{other}"
        compound += f"-{other}" if is_compound else other
    return word if word == compound else f"{word} {compound}"


def _is_divisible(left: str, right: str) -> bool:
    """Whether a hyphen between these letters may be one that only divides a word."""
    is_cased = left[-1:].lower() != left[-1:].upper() and right[:1].lower() != right[:1].upper()
    return is_cased and len(left) > 1 and (right[0].islower() or left.isupper())


def without_contents(pages: Sequence[str]) -> list[str]:
    """Pages without the lines of lists of contents, figures or words, and without leaders in the remaining ones.

    Such a line has the numbers of pages after its words. It is left out if all its words are in the text of a page that
    it names, so that they are found there and nothing is lost. Pages may be numbered from any number on. Lines without
    leaders are left out where at least half of the lines of a page are such.
    """
    lines = [page.split("\n") for page in pages]
    entries = {(page, line): entry for page, texts in enumerate(lines) for line, entry in _entries(texts)}
    confirmed = _confirmed(lines, entries) if len(entries) >= FEWEST else set()
    counts = Counter(page for page, _ in confirmed)
    lists = {page for page, count in counts.items() if FEWEST <= count >= sum(map(bool, lines[page])) / 2}
    kept = list(pages)
    for page in counts:
        places = ((text, (page, line)) for line, text in enumerate(lines[page]))
        texts = (t for t, place in places if place not in confirmed or not (page in lists or _has_leaders(t)))
        kept[page] = "\n".join(texts)
    return [LEADERS.sub(" ", page) if _has_leaders(page) else page for page in kept]


def _has_leaders(text: str) -> bool:
    return ". . . . ." in text or "....." in text


def _entries(texts: Sequence[str]) -> list[tuple[int, Entry]]:
    """The lines of a page that may be of a list: those with leaders, or all if most end in numbers."""
    found = []
    for line, text in enumerate(texts):
        if text[-1:].isdigit() and len(text) <= LONGEST_ENTRY and (numbers := NUMBERS.search(text)):
            words = PART.findall(text[: numbers.start()].casefold())
            if any(map(str.isalpha, words)):
                found.append((line, (frozenset(words), [int(number) for number in PART.findall(numbers[0])])))
    is_list = FEWEST <= len(found) >= sum(map(bool, texts)) / 2
    return [(line, entry) for line, entry in found if is_list or _has_leaders(texts[line])]


def _confirmed(lines: Sequence[Sequence[str]], entries: Mapping[Place, Entry]) -> Iterable[Place]:
    """The entries whose words are on a page that they name, apart from other entries."""
    words = set[str]().union(*(words for words, _ in entries.values()))
    places = dict.fromkeys(words, 0)  # the pages of a word, as bits
    for page, texts in enumerate(lines):
        rest = " ".join(text for line, text in enumerate(texts) if (page, line) not in entries)
        tokens = set(rest.casefold().split())
        compounds = " ".join(token for token in tokens if not token.isalnum())
        for word in words & tokens | words.intersection(PART.findall(compounds)):
            places[word] |= 1 << page
    found = {place: reduce(and_, (places[word] for word in words)) for place, (words, _) in entries.items()}
    offsets = Counter(
        page - number
        for place, (_, numbers) in entries.items()
        if found[place].bit_count() <= RARE
        for page in _bits(found[place])
        for number in numbers
    )
    ((offset, votes),) = offsets.most_common(1) or [(0, 0)]
    named = ((place, number + offset) for place, (_, numbers) in entries.items() for number in numbers)
    return {place for place, page in named if votes >= FEWEST and page >= 0 and found[place] >> page & 1}


def _bits(number: int) -> Iterator[int]:
    """The places of the bits of a number that are 1."""
    while number:
        yield (lowest := number & -number).bit_length() - 1
        number ^= lowest
