"""Read PubMed's baseline, S2ORC's abstracts, and BioASQ's articles and questions.

A reader takes an open file and its path, and yields articles. It raises CaiError, with file and line, for a broken one.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple
from xml.etree import ElementTree

from cai_pyserini.collections.values import checked_id
from cai_pyserini.core import jsonl
from cai_pyserini.core.errors import CaiError

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
