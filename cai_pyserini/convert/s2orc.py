"""S2ORC's metadata of 2020, and the dataset `abstracts` of Semantic Scholar: one JSON object per line."""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from cai_pyserini.convert.articles import Article, decode, parse_article

LINE_BREAK = ":::"  # in S2ORC's abstracts


def read(file: BinaryIO, path: Path) -> Iterator[Article]:
    """The articles of a file; those of `abstracts` have no titles. Raises CaiError for a broken line."""
    for number, line in enumerate(file, 1):
        if text := decode(line).strip():
            where = f"{path}:{number}"
            yield parse_article(text.replace(LINE_BREAK, " "), where, ("corpusid", "paper_id"), "abstract")
