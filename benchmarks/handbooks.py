"""A collection of long documents: HTML pages of handbooks that Debian packages ship, read as a folder of files is.

A document is a page of 300 to 4,000 words. There are two kinds of queries, each a split, made of headings that no other
page has, and that are taken out of the page:

- `about`: the first heading of a page, its title;
- `passage`: another one, which has 250 words or more of the page before it.

Of each package a sample is taken. Downloads 90 MB into --packages; needs Debian's apt-get.
"""

import random
import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import harness
from lxml import html

from cai_pyserini.collections.contract import Qrels, Record
from cai_pyserini.collections.file_text import read_file
from cai_pyserini.collections.formats import Text

PACKAGES = (
    *("bash-doc", "debian-handbook", "exim4-doc-html", "gnumeric-doc", "gnuplot-doc", "haproxy-doc"),
    *("maxima-doc", "nodejs-doc", "octave-doc", "postgresql-doc-15", "python-django-doc", "python-sqlalchemy-doc"),
    *("python3.11-doc", "r-doc-html", "sqlite3-doc"),
)
SEED = 42
PAGES = 500  # of a package at most
WORDS = range(300, 4001)  # of a page
HEADING = range(2, 16)  # words of a heading that is a query
BEFORE = 250  # words of a page before a heading that is a query for its inside
QUERIES = 1000  # of each kind
INDEXES = re.compile(r"genindex|search|toc|_modules|changelog")  # pages that are no text
NUMBER = re.compile(r"(?:(?:Chapter|Appendix) )?(?:[\dA-Z]+(?:\.\d+)*\.?)\s+(?=\S)")


class Page(NamedTuple):
    """A page: its name, the lines of its text, and its headings, of which the first is its title."""

    name: str
    lines: list[str]
    headings: list[str]


def main() -> None:
    parser = harness.output_of(__doc__)
    parser.add_argument("--packages", type=Path, required=True, help="folder of the unpacked packages")
    args = parser.parse_args()
    draw = random.Random(SEED)
    harness.download(PACKAGES, args.packages)
    pages = [page for package in PACKAGES for page in _pages(args.packages / package, draw)]
    times = Counter(heading for page in pages for heading in {*page.headings})
    titles: dict[str, str] = {}
    inside: dict[str, str] = {}
    for page in pages:
        title, *others = page.headings
        once = [heading for heading in others if times[heading] == 1 and _is_inside(page, heading)]
        if once:
            inside[page.name] = draw.choice(once)
        if times[title] == 1:
            titles[page.name] = title
    topics: dict[str, str] = {}
    splits: dict[str, Qrels] = {}
    for split, found in (("about", titles), ("passage", inside)):
        chosen = draw.sample([*found], min(QUERIES, len(found)))
        topics |= {f"{split}{number}": _query(found[name]) for number, name in enumerate(chosen, 1)}
        splits[split] = {f"{split}{number}": {name: 1} for number, name in enumerate(chosen, 1)}
    taken = {page.name: {titles.get(page.name), inside.get(page.name)} for page in pages}
    records = [
        Record("", page.name, "", "\n".join(line for line in page.lines if line not in taken[page.name]))
        for page in draw.sample(pages, len(pages))
    ]
    harness.write_folder(args.output, records, topics, splits)
    print(f"{len(records):,} pages; " + ", ".join(f"{len(qrels):,} queries {split}" for split, qrels in splits.items()))


def _pages(package: Path, draw: random.Random) -> list[Page]:
    """A sample of a package's pages; of a handbook in several languages, the English ones."""
    files = sorted(path for path in package.rglob("*.htm*") if path.is_file() and not path.is_symlink())
    names = {path.name: path for path in files}
    paths = [path for path in names.values() if not INDEXES.search(path.name)]
    if english := [path for path in paths if "en-US" in path.parts]:
        paths = english
    sample = draw.sample(paths, min(PAGES, len(paths)))
    return [page for path in sample if (page := _page(f"{package.name}/{path.name}", path))]


def _page(name: str, path: Path) -> Page | None:
    """A page; None if it has no heading or is too short or too long."""
    _, read = read_file((str(path), "html"))
    if not isinstance(read, Text):
        return None
    lines = [_line(line) for line in read.text.splitlines()]
    elements = html.document_fromstring(path.read_bytes()).iter("h1", "h2", "h3", "h4", "h5")
    headings = [heading for element in elements if (heading := _line(element.text_content())) in lines]
    usable = headings and len(_query(headings[0]).split()) in HEADING
    return Page(name, lines, headings) if usable and sum(len(line.split()) for line in lines) in WORDS else None


def _is_inside(page: Page, heading: str) -> bool:
    before = sum(len(line.split()) for line in page.lines[: page.lines.index(heading)])
    return before > BEFORE and page.lines.count(heading) == 1 and len(_query(heading).split()) in HEADING


def _line(text: str) -> str:
    """A line or heading with single spaces, without the sign of a link to it."""
    return " ".join(text.split()).rstrip("¶# ")


def _query(heading: str) -> str:
    """A heading without its number."""
    return NUMBER.sub("", heading, count=1) if any(map(str.isdigit, heading[:12])) else heading


if __name__ == "__main__":
    main()
