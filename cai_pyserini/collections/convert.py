"""Convert articles (PubMed's baseline, S2ORC's abstracts, BioASQ with its questions) to a BEIR folder.

Every input file is first converted to a separate intermediate JSONL file, so that an interrupted conversion resumes at
the file where it stopped. These files are then merged backwards, from the last article to the first, so that the first
version of an article that is read is the latest.

A reader takes an open file and its path, and yields articles. It raises CaiError, with file and line, for a broken one.
"""

import gzip
import json
import re
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast
from xml.etree import ElementTree

from cai_pyserini.collections.values import SeenIds, checked_id
from cai_pyserini.core import artifact, jsonl
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import remove
from cai_pyserini.core.terminal import progress

LINE_BREAK = ":::"  # S2ORC's abstracts have it
OPENING = re.compile(r'\{\s*"articles"\s*:\s*\[')  # begins a BioASQ file


class Article(NamedTuple):
    """An article, with the texts of its source."""

    id: str
    title: str
    abstract: str | None  # empty if there is none; None if the source deletes the article


class Question(NamedTuple):
    """A question, and the PMIDs of the articles that are relevant to it."""

    text: str
    relevant: list[str]


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
    for path, recipe, output in zip(inputs, recipes, outputs, strict=True):
        write = partial(_write_records, recipe["settings"]["source"], path)
        artifact.make(output, recipe, write, folder=False)
    return outputs


def _write_records(source: str, path: Path, output: Path) -> artifact.Stats:
    """Write the articles of a file as BEIR records; `text` is null for an article that the source deletes."""
    with path.open("rb") as raw:
        file = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if path.suffix == ".gz" else raw
        articles = progress(READERS[source](file, path), None, f"read {path.name}", "articles")
        records = (
            {
                "_id": article.id,
                "title": one_line(article.title),
                "text": None if article.abstract is None else one_line(article.abstract),
            }
            for article in articles
        )
        try:
            return {"articles": jsonl.write(output, records)}
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


def read_pubmed(file: BinaryIO, path: Path) -> Iterator[Article]:
    """Read the articles of a PubmedArticleSet (XML), and those that it deletes. The text inside markup is kept. The
    sections of a structured abstract follow their labels, as PubMed shows them."""
    try:
        # Safe for files from the network: expat loads no external entities and limits entity expansion.
        events = ElementTree.iterparse(file, ("start", "end"))  # noqa: S314
        root = next(events)[1]
        if root.tag != "PubmedArticleSet":
            raise CaiError(f"{path}: the root element is {root.tag}, not PubmedArticleSet; is this a PubMed file?")
        for event, element in events:
            if event == "end" and element.tag == "PubmedArticle":
                yield _pubmed_article(element, path)
                root.clear()
            elif event == "end" and element.tag == "DeleteCitation":
                yield from (Article((pmid.text or "").strip(), "", None) for pmid in element.iterfind("PMID"))
    except ElementTree.ParseError as error:
        raise CaiError(f"{path}:{error.position[0]}: not XML, or truncated ({error}); download it again") from None


def _pubmed_article(element: ElementTree.Element, path: Path) -> Article:
    id = element.findtext("MedlineCitation/PMID", "").strip()
    if not id:
        raise CaiError(f"{path}: an article has no PMID; download the file again")
    title = element.find("MedlineCitation/Article/ArticleTitle")
    sections = []
    for section in element.iterfind("MedlineCitation/Article/Abstract/AbstractText"):
        label = section.get("Label", "UNLABELLED")
        sections.append(("" if label == "UNLABELLED" else f"{label}: ") + "".join(section.itertext()))
    return Article(id, "" if title is None else "".join(title.itertext()), " ".join(sections))


def read_s2orc(file: BinaryIO, path: Path) -> Iterator[Article]:
    """Read the articles of S2ORC's metadata of 2020, or of Semantic Scholar's `abstracts`, without titles (JSONL)."""
    for number, line in enumerate(file, 1):
        if text := decode(line).strip():
            text = text.replace(LINE_BREAK, " ")
            yield _json_article(text, f"{path}:{number}", ("corpusid", "paper_id"), "abstract")


def read_bioasq(file: BinaryIO, path: Path) -> Iterator[Article]:
    """Read the articles of BioASQ's Task A: `{"articles":[`, one article per line, `]}`; or only the article lines."""
    opened = closed = False
    for number, line in enumerate(file, 1):
        text = decode(line).strip()
        if number == 1 and (opening := OPENING.match(text)):
            opened, text = True, text[opening.end() :].lstrip()
        text = text.removesuffix(",")
        if text == "]}" or text.endswith("}]}"):
            closed, text = True, text[:-2]
        if text:
            yield _json_article(text, f"{path}:{number}", ("pmid",), "abstractText")
    if opened and not closed:
        raise CaiError(f"{path}: truncated, it does not end with ]}}; download it again")


READERS: dict[str, Callable[[BinaryIO, Path], Iterator[Article]]] = {
    "pubmed": read_pubmed,
    "s2orc": read_s2orc,
    "bioasq": read_bioasq,
}


def _json_article(line: str, where: str, id_keys: Sequence[str], abstract_key: str) -> Article:
    """Parse an article from a JSON line. Its id is under the first of `id_keys` in it; both texts may be null."""
    data = jsonl.parse(line, where, surrogates=True)
    id = next((data[key] for key in id_keys if key in data), None)
    title, abstract = data.get("title"), data.get(abstract_key, 0)
    if id is None or not isinstance(title, str | None) or not isinstance(abstract, str | None):
        raise CaiError(f"{where}: expected an object with {' or '.join(id_keys)}, and {abstract_key} (text or null)")
    return Article(checked_id(id, where), title or "", abstract or "")


def read_questions(paths: Sequence[Path]) -> dict[str, Question]:
    """Read the questions of BioASQ's Task B, by id. The URL of a relevant document ends with its PMID."""
    questions: dict[str, Question] = {}
    for path in paths:
        try:
            for data in json.loads(decode(path.read_bytes()))["questions"]:
                pmids = [url.rstrip("/").rpartition("/")[2] for url in data["documents"]]
                if not all(pmid.isdigit() for pmid in pmids):
                    raise CaiError(f"{path}: question {data['id']}: a document's URL has no PMID at its end; remove it")
                questions[data["id"]] = Question(one_line(data["body"]), list(dict.fromkeys(pmids)))
        except json.JSONDecodeError as error:
            raise CaiError(f"{path}:{error.lineno}: not JSON ({error.msg}); correct it or download it again") from None
        except (KeyError, TypeError, AttributeError):
            expected = '{"questions": [{"id": …, "body": …, "documents": [URL, …]}, …]}'
            raise CaiError(f"{path}: expected {expected}, as in the golden files of Task B") from None
    return questions


def decode(data: bytes) -> str:
    """Decode UTF-8, or Latin-1, which some editions of BioASQ use."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


def one_line(text: str) -> str:
    """Put a text on one line, without unpaired surrogates, which JSON can escape but UTF-8 cannot encode."""
    return " ".join(text.encode(errors="ignore").decode().split())
