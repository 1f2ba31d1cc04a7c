"""Long documents: a collection of manual pages, and what the settings for long documents do to the systems' scores.

A document is a manual page of this machine without its NAME section (title: the page's name). There are two kinds of
queries, each a split:

- `about`: the description in a NAME section, which says what a page is about; relevant are the pages that have it.
- `passage`: a sentence from anywhere in a page, which is taken out of the page (inverse cloze task, Lee et al. 2019);
  relevant is the page.

Links, copies and very short pages are left out; of families such as git-* a sample is taken. Needs the program `man`.
Every row is one run of `python -m cai_pyserini.beir` per split.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import harness

MAN = Path("/usr/share/man")
SECTIONS = ("man1", "man2", "man3", "man5", "man7", "man8")
SEED = 42
PAGES = 2000
FAMILY = 50  # pages at most whose names begin with the same word
SHORTEST = 100  # words of a page
SENTENCE = range(8, 26)  # words of a sentence that is a query
QUERIES = 1000  # of each kind
BOXES = re.compile("[\u2500-\u257f]+")  # lines of tables

SPLITS = ("about", "passage")
SYSTEMS = ("bm25", "splade-idf", "hybrid-splade-idf-minmax", "dense")
READINGS: dict[str, tuple[dict[str, int], tuple[str, ...]]] = {  # settings, and the systems to run with them
    "cut off after 256 word pieces": ({}, SYSTEMS),
    "windows, overlap 0": ({"overlap": 0}, SYSTEMS[1:]),
    "windows, overlap 32": ({"overlap": 32}, SYSTEMS[1:3]),
    "windows, overlap 64": ({"overlap": 64}, SYSTEMS[1:3]),
    "passages of 100 words": ({"passages": 100}, SYSTEMS),
}

Values = dict[tuple[str, str], dict[str, dict[str, float]]]  # system and split -> measure -> query -> value


class Page(NamedTuple):
    """A manual page: its name, its description, and the paragraphs of its other sections."""

    name: str
    description: str
    paragraphs: list[str]


def write(output: str) -> harness.Result:
    """Write the BEIR folder."""
    draw = random.Random(SEED)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
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
    documents = [{"_id": name, "title": name.split(".")[0], "text": text} for name, text in texts.items()]
    topics = []
    for split, relevant in queries.items():
        rows = ["query-id\tcorpus-id\tscore"]
        for number, (text, names) in enumerate(relevant.items(), 1):
            topics.append({"_id": f"{split}{number}", "text": text})
            rows += [f"{split}{number}\t{name}\t1" for name in names]
        _write_lines(Path(output, "qrels", f"{split}.tsv"), rows)
    _write_lines(Path(output, "corpus.jsonl"), map(json.dumps, documents))
    _write_lines(Path(output, "queries.jsonl"), map(json.dumps, topics))
    return {"documents": len(documents), "queries": len(topics)}


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


def _write_lines(path: Path, lines: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def configure(folder: str, reading: str, encoder: str, dense: str, output: str) -> harness.Result:
    """Write the YAML files of a way of reading: collection.yaml, splade.yaml and dense.yaml."""
    from cai_pyserini.core.config import encoder_yaml, load_encoder

    settings = READINGS[reading][0]
    collection: dict[str, Any] = {"name": Path(folder).name, "source": str(Path(folder).resolve())}
    if passages := settings.get("passages"):
        collection["passages"] = passages
    _write_lines(Path(output, "collection.yaml"), [json.dumps(collection)])
    for kind, spec in (("splade", encoder), ("dense", dense)):
        text = encoder_yaml(load_encoder(spec).replace(overlap=settings.get("overlap")), Path(output))
        _write_lines(Path(output, f"{kind}.yaml"), [text])
    return {}


def run(folder: str, reading: str, encoder: str, dense: str) -> tuple[dict[str, Any], Values]:
    """Run systems with a way of reading: results.json, and the measures of every query of each system."""
    output = Path(folder, "readings", re.sub(r"\W+", "-", reading))
    harness.fresh(configure, folder=folder, reading=reading, encoder=encoder, dense=dense, output=str(output))
    command = [sys.executable, "-m", "cai_pyserini.beir", f"{output}/collection.yaml", "--output", str(output / "run")]
    systems = READINGS[reading][1]
    command += ["--encoder", f"{output}/splade.yaml", "--dense", f"{output}/dense.yaml", "--systems", *systems]
    values: Values = {}
    for split in SPLITS:
        print(f"{reading}: {split}", file=sys.stderr)
        harness.run([*command, "--split", split])
        for system in systems:
            values[system, split] = json.loads((output / "run" / "evaluations" / f"{system}.json").read_text())
    return json.loads((output / "run" / "results.json").read_text()), values


def table(results: dict[str, dict[str, Any]], values: dict[str, Values]) -> list[list[str]]:
    """A row per system and way of reading; † marks what differs from the first way of the system."""
    from cai_pyserini.evaluate.measures import mean
    from cai_pyserini.evaluate.significance import compare

    rows = []
    for system in SYSTEMS:
        first, *others = [name for name, (_, systems) in READINGS.items() if system in systems]
        cells = {name: [system, name] for name in (first, *others)}
        for split in SPLITS:
            for measure in ("nDCG@10", "R@100"):
                found = {name: values[name][system, split][measure] for name in cells}
                compared = compare(found[first], {name: found[name] for name in others})
                for name, cell in cells.items():
                    differs = name in compared and compared[name].p < 0.05
                    cell.append(f"{mean(found[name]):.4f}{'†' * differs}")
        for name, cell in cells.items():
            cell += _costs(system, results[name], results[first])
        rows += cells.values()
    return rows


def _costs(system: str, result: dict[str, Any], first: dict[str, Any]) -> list[str]:
    """The size of a system's index in MB; of SPLADE's and dense vectors, the encoding time as a multiple of the first
    way's; of SPLADE's, the non-zeros per page."""
    if system not in result["index_bytes"]:
        return ["", "", ""]
    nonzeros = time = ""
    stage = {"splade-idf": "encode documents", "dense": "encode dense-documents"}.get(system)
    if stage:
        time = f"{result['timings_s'][stage] / first['timings_s'][stage]:.1f}"
    if system == "splade-idf":
        counts = result["counts"]
        vectors = counts.get("passages", counts["documents"])
        nonzeros = f"{result['nonzeros_per_document'] * vectors / counts['documents']:,.0f}"
    return [f"{result['index_bytes'][system] / 1e6:.1f}", nonzeros, time]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="long.py",
        description=__doc__,
        epilog="example:\n  python tests/benchmarks/long.py --output data/man",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", required=True, help="folder of the collection and the runs")
    parser.add_argument("--encoder", default="splade-tiny", help="a name in encoders/, or a checkpoint folder")
    parser.add_argument("--dense", default="minilm", help="a dense encoder")
    args = parser.parse_args()
    if not Path(args.output, "queries.jsonl").exists():
        harness.fresh(write, output=args.output)
    results, values = {}, {}
    for reading in READINGS:
        results[reading], values[reading] = run(args.output, reading, args.encoder, args.dense)
    header = ["system", "reading", *(f"{split}: {m}" for split in SPLITS for m in ("nDCG@10", "R@100"))]
    header += ["index, MB", "non-zeros per page", "encoding time"]
    counts = next(iter(results.values()))["counts"]
    title = f"{counts['documents']:,} manual pages, {100 * counts['lost']:.0f}% of the text beyond 256 word pieces"
    harness.show(title, header, table(results, values))


if __name__ == "__main__":
    main()
