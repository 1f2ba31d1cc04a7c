"""PubMed's annual baseline and its update files, XML."""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO
from xml.etree import ElementTree

from cai_pyserini.convert.articles import Article
from cai_pyserini.core.errors import CaiError


def read(file: BinaryIO, path: Path) -> Iterator[Article]:
    """The articles of a PubmedArticleSet, and those that it deletes.

    The text inside markup is kept. The sections of a structured abstract follow their labels, as PubMed shows them.
    Raises CaiError for a file that is broken or not PubMed's.
    """
    try:
        # Safe for files from the network: expat loads no external entities and limits how far entities expand.
        events = ElementTree.iterparse(file, ("start", "end"))  # noqa: S314
        root = next(events)[1]
        if root.tag != "PubmedArticleSet":
            raise CaiError(f"{path}: the root element is {root.tag}, not PubmedArticleSet; is this a file of PubMed's?")
        for event, element in events:
            if event == "end" and element.tag == "PubmedArticle":
                yield _article(element, path)
                root.clear()
            elif event == "end" and element.tag == "DeleteCitation":
                yield from (Article((pmid.text or "").strip(), "", None) for pmid in element.iterfind("PMID"))
    except ElementTree.ParseError as error:
        raise CaiError(f"{path}:{error.position[0]}: not XML, or truncated ({error}); download it again") from None


def _article(element: ElementTree.Element, path: Path) -> Article:
    id = element.findtext("MedlineCitation/PMID", "").strip()
    if not id:
        raise CaiError(f"{path}: an article has no PMID; download the file again")
    title = element.find("MedlineCitation/Article/ArticleTitle")
    sections = element.iterfind("MedlineCitation/Article/Abstract/AbstractText")
    return Article(id, "" if title is None else "".join(title.itertext()), " ".join(map(_section, sections)))


def _section(element: ElementTree.Element) -> str:
    label = element.get("Label", "UNLABELLED")
    return ("" if label == "UNLABELLED" else f"{label}: ") + "".join(element.itertext())
