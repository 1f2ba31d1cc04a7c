"""Convert the files of a source to a BEIR folder.

Every input file is first converted to a separate intermediate JSONL file, so that an interrupted conversion resumes at
the file where it stopped. These files are then merged backwards, from the last article to the first, so that the first
version of an article that is read is the latest.
"""

import gzip
import json
import zlib
from array import array
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, cast

from tqdm import tqdm

from cai_pyserini.collections.sources import READERS, Question, one_line, read_questions
from cai_pyserini.collections.values import SeenIds
from cai_pyserini.core import artifact, jsonl
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import remove
from cai_pyserini.core.terminal import progress


def convert(
    source: str, inputs: Sequence[Path], output: Path, min_words: int, question_files: Sequence[Path] = ()
) -> Path:
    """Write a BEIR folder of the articles whose abstracts have at least `min_words` words; 0 also keeps bare titles.

    Only the last version of an article, in the order of `inputs`, is used. With questions, the folder also has queries
    and the split `test`, without judgments of articles that are not in the corpus. Raises CaiError if nothing is left.
    """
    if missing := next((path for path in (*inputs, *question_files) if not path.is_file()), None):
        raise CaiError(f"{missing} is a folder: give its files" if missing.is_dir() else f"no file {missing}")
    artifact.require_writable(output, in_place=True)
    questions = read_questions(question_files)
    digests = [artifact.file_digest(path) for path in progress(inputs, len(inputs), "digest", "files")]
    recipes = [artifact.recipe("convert", {"file": digest}, source=source) for digest in digests]
    from_all = {"files": digests, "questions": [artifact.file_digest(path) for path in question_files]}
    recipe = artifact.recipe("convert", from_all, source=source, min_words=min_words)
    intermediate = output.absolute().with_name(f".{output.absolute().name}.files")

    def write(folder: Path) -> artifact.Stats:
        articles = _read_files(inputs, recipes, intermediate)
        judged = {id for question in questions.values() for id in question.relevant}
        counts, found = _merge(articles, min_words, judged, folder / "corpus.jsonl")
        return {"articles": counts} | ({"questions": _write_questions(questions, found, folder)} if questions else {})

    artifact.make(output, recipe, write)
    remove(intermediate)
    return output


def _read_files(inputs: Sequence[Path], recipes: Sequence[artifact.Recipe], folder: Path) -> list[Path]:
    """Convert each input file to a JSONL file in `folder`, unless it is up to date. Returns the JSONL files."""
    outputs = [folder / f"{recipe['settings']['source']}-{recipe['inputs']['file']}.jsonl" for recipe in recipes]
    with progress(range(0), sum(path.stat().st_size for path in inputs), "read", "B") as bar:
        for path, recipe, output in zip(inputs, recipes, outputs, strict=True):
            if artifact.is_up_to_date(output, recipe):
                bar.update(path.stat().st_size)
                continue
            write = partial(_write_records, recipe["settings"]["source"], path, bar)
            artifact.make(output, recipe, write, folder=False)
    return outputs


def _write_records(source: str, path: Path, bar: "tqdm[int]", output: Path) -> artifact.Stats:
    """Write the articles of a file as BEIR records; `text` is null for an article that the source deletes."""

    def records() -> Iterator[dict[str, Any]]:
        position = 0
        for article in READERS[source](file, path):
            text = None if article.abstract is None else one_line(article.abstract)
            yield {"_id": article.id, "title": one_line(article.title), "text": text}
            bar.update(raw.tell() - position)
            position = raw.tell()

    with path.open("rb") as raw:
        file = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if path.suffix == ".gz" else raw
        try:
            return {"articles": jsonl.write(output, records())}
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise CaiError(f"{path}: not a gzip file, or truncated ({error}); download it again") from None


def _merge(files: Sequence[Path], min_words: int, judged: set[str], corpus: Path) -> tuple[dict[str, int], set[str]]:
    """Write the corpus. Returns the number of articles by outcome, and the ids in `judged` that are in the corpus."""
    counts = dict.fromkeys(("read", "replaced", "without_abstract", "short", "kept"), 0)
    found, seen = set(), SeenIds()
    total = sum(artifact.require(file, "convert").stats["articles"] for file in files)
    lines = (line for file in reversed(files) for line in _backwards(file))
    with corpus.open("wb") as out:
        for line in progress(lines, total, "merge", "articles"):
            data = json.loads(line)
            has_later_version = seen.add(data["_id"])
            if data["text"] is None:
                continue
            counts["read"] += 1
            if has_later_version:
                counts["replaced"] += 1
            elif not data["text"] and (min_words or not data["title"]):
                counts["without_abstract"] += 1
            elif len(data["text"].split()) < min_words:
                counts["short"] += 1
            else:
                counts["kept"] += 1
                out.write(line)
                if data["_id"] in judged:
                    found.add(data["_id"])
    if not counts["read"]:
        raise CaiError("the input has no articles")
    if not counts["kept"]:
        raise CaiError(
            f"none of {counts['read']:,} articles has an abstract of at least {min_words} words: lower --min-words"
        )
    return counts, found


def _backwards(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file from last to first, with 8 bytes of memory per line."""
    with path.open("rb") as file:
        ends = array("q", accumulate(map(len, file), initial=0))
        while ends.pop():
            file.seek(ends[-1])
            yield file.readline()


def _write_questions(questions: dict[str, Question], found: set[str], folder: Path) -> dict[str, int]:
    """Write queries.jsonl and qrels/test.tsv of the questions with a relevant article in `found`. Returns counts."""
    relevant = {id: [pmid for pmid in question.relevant if pmid in found] for id, question in questions.items()}
    judged = {id: pmids for id, pmids in relevant.items() if pmids}
    if not judged:
        raise CaiError("the articles include none of the questions' documents: both must be of the same edition")
    jsonl.write(folder / "queries.jsonl", ({"_id": id, "text": questions[id].text} for id in judged))
    lines = [f"{id}\t{pmid}\t1\n" for id, pmids in judged.items() for pmid in pmids]
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines), encoding="utf-8")
    left_out = sum(len(question.relevant) for question in questions.values()) - len(lines)
    counts = {"read": len(questions), "kept": len(judged), "judgments": len(lines)}
    return counts | {"judgments_left_out": left_out}
