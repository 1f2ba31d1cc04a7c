"""A collection of long documents: the manual pages of this machine.

A document is a page without its NAME section (title: the page's name). There are two kinds of queries, each a split:

- `about`: the description in a NAME section, which says what a page is about; relevant are the pages that have it.
- `passage`: a sentence from anywhere in a page, which is taken out of the page (inverse cloze task, Lee et al. 2019);
  relevant is the page.

Links, copies and very short pages are left out; of families such as git-* a sample is taken. Needs the program `man`.
"""

import os
import random
import re
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import harness

from cai_pyserini.collections.contract import Qrels, Record
from cai_pyserini.core.processes import processors

MAN = Path("/usr/share/man")
SECTIONS = ("man1", "man2", "man3", "man5", "man7", "man8")
SEED = 42
PAGES = 2000
FAMILY = 50  # pages at most whose names begin with the same word
SHORTEST = 100  # words of a page
SENTENCE = range(8, 26)  # words of a sentence that is a query
QUERIES = 1000  # of each kind
BOXES = re.compile("[\u2500-\u257f]+")  # lines of tables


class Page(NamedTuple):
    """A manual page: its name, its description, and the paragraphs of its other sections."""

    name: str
    description: str
    paragraphs: list[str]


def main() -> None:
    args = harness.output_of(__doc__).parse_args()
    draw = random.Random(SEED)
    with ThreadPoolExecutor(processors()) as pool:
        found = [page for page in pool.map(_read, _sample(draw)) if page]
    pages = list({tuple(page.paragraphs): page for page in found}.values())
    about: dict[str, list[str]] = {}
    for page in pages:
        about.setdefault(page.description, []).append(page.name)
    own = {page.name: [text for line in page.paragraphs for text in _sentences(line)] for page in pages}
    times = Counter(text for texts in own.values() for text in texts)
    unique = {name: once for name, texts in own.items() if (once := [text for text in texts if times[text] == 1])}
    taken = {name: draw.choice(unique[name]) for name in draw.sample(sorted(unique), min(QUERIES, len(unique)))}
    queries = {
        "about": {text: about[text] for text in draw.sample(sorted(about), min(QUERIES, len(about)))},
        "passage": {text: [name] for name, text in taken.items()},
    }
    texts = {page.name: "\n".join(page.paragraphs).replace(taken.get(page.name, "\0"), "") for page in pages}
    records = [Record("", name, name.split(".")[0], text) for name, text in texts.items()]
    topics: dict[str, str] = {}
    splits: dict[str, Qrels] = {}
    for split, relevant in queries.items():
        ids = {text: f"{split}{number}" for number, text in enumerate(relevant, 1)}
        topics |= {id: text for text, id in ids.items()}
        splits[split] = {ids[text]: dict.fromkeys(names, 1) for text, names in relevant.items()}
    harness.write_folder(args.output, records, topics, splits)


def _sample(draw: random.Random) -> list[Path]:
    """The files of PAGES manual pages, at most FAMILY of each family."""
    families: dict[str, list[Path]] = {}
    for path in sorted(path for section in SECTIONS for path in (MAN / section).glob("*.gz")):
        if not path.is_symlink():
            families.setdefault(re.split(r"\W|_", path.name)[0], []).append(path)
    pages = [path for family in families.values() for path in draw.sample(family, min(FAMILY, len(family)))]
    return draw.sample(pages, min(PAGES, len(pages)))


def _read(path: Path) -> Page | None:
    """A manual page, formatted by `man`; None if it is too short or has no description."""
    command = ["man", "--no-hyphenation", "--no-justification", "--local-file", str(path)]
    environment = os.environ | {"MANWIDTH": "5000", "LC_ALL": "C.UTF-8"}  # so wide that a paragraph is a line
    output = subprocess.run(command, capture_output=True, text=True, check=False, env=environment).stdout
    sections: dict[str, list[str]] = {}
    heading = ""
    for line in BOXES.sub(" ", output).splitlines()[1:-1]:  # without the running titles
        if line[:1].strip():
            heading = line.strip()
        elif line.strip():
            sections.setdefault(heading, []).append(" ".join(line.split()))
    _, _, description = re.sub(" [–—] ", " - ", " ".join(sections.pop("NAME", []))).partition(" - ")
    paragraphs = [line for heading, lines in sections.items() for line in (heading, *lines)]
    if len(description.split()) < 3 or sum(len(text.split()) for text in paragraphs) < SHORTEST:
        return None
    return Page(path.name.removesuffix(".gz"), description, paragraphs)


def _sentences(paragraph: str) -> list[str]:
    """The sentences of a paragraph that can be queries."""
    found = re.split(r"(?<=[.!?]) (?=[A-Z])", paragraph)
    return [text for text in found if len(text.split()) in SENTENCE and text[0].isupper() and text.endswith(".")]


if __name__ == "__main__":
    main()
