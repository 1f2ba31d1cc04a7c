"""A collection of many short documents: the descriptions of Debian's packages, from the lists of apt.

A document is the long description of a package; a query is the synopsis above it, and relevant is the document below.
Documents have no title, since names of packages are made of the words of synopses (python3-NAME, NAME-doc). Packages
with the same long description are one document, to which each of their synopses leads; a synopsis that several packages
share leads to all of theirs. Descriptions of fewer than SHORTEST words are left out, and so is a synopsis where the
description repeats it.

Needs Debian or a system made from it, with English descriptions: apt-get update -o Acquire::Languages=en
"""

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import harness

from cai_pyserini.collections.contract import Qrels, Record

SEED = 42
SHORTEST = 10  # words of a description
QUERIES = 2000


def main() -> None:
    args = harness.output_of(__doc__).parse_args()
    ids: dict[str, str] = {}  # of documents, by their text: the first package that has it
    relevant: dict[str, Qrels | dict[str, int]] = {}
    for package, synopsis, text in sorted(descriptions()):
        if len(text.split()) >= SHORTEST:
            relevant.setdefault(synopsis, {})[ids.setdefault(text, package)] = 1
    synopses = random.Random(SEED).sample(sorted(relevant), min(QUERIES, len(relevant)))
    topics = {f"q{number}": synopsis for number, synopsis in enumerate(synopses, 1)}
    qrels = {id: relevant[synopsis] for id, synopsis in topics.items()}
    records = (Record("", id, "", text) for text, id in ids.items())
    harness.write_folder(args.output, records, topics, {"test": qrels})


def descriptions() -> Iterator[tuple[str, str, str]]:
    """The name, synopsis and long description of every package; of several versions, one."""
    options = ["--option", "Acquire::Languages=en", "--format", "$(FILENAME)", "Created-By: Translations"]
    files = [file for file in _output("apt-get", "indextargets", *options).splitlines() if Path(file).exists()]
    if not files:
        raise SystemExit("no descriptions of packages: run apt-get update -o Acquire::Languages=en")
    paragraphs = _output("/usr/lib/apt/apt-helper", "cat-file", *files).split("\n\n")
    entries = {name: lines for paragraph in paragraphs if paragraph for name, *lines in [paragraph.strip().split("\n")]}
    for name, lines in entries.items():
        first = next(number for number, line in enumerate(lines) if line.startswith("Description-en: "))
        synopsis = lines[first].partition(": ")[2].strip()
        text = "\n".join("" if line == " ." else line.strip() for line in lines[first + 1 :])
        yield name.partition(": ")[2], synopsis, text.replace(synopsis, "").strip()


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
