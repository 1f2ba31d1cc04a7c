"""BioASQ: the articles of Task A (allMeSH_*.json) and the questions of Task B (*_golden.json)."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from cai_pyserini.convert.articles import Article, decode, one_line, parse_article
from cai_pyserini.core.errors import CaiError

OPENING = re.compile(r'\{\s*"articles"\s*:\s*\[')


class Question(NamedTuple):
    """A question, and the PMIDs of the articles that are relevant to it."""

    text: str
    relevant: list[str]


def read(file: BinaryIO, path: Path) -> Iterator[Article]:
    """The articles of Task A: `{"articles":[`, one article per line, `]}`; or the articles' lines alone.

    Raises CaiError for a broken line, and for a file that does not end with `]}`.
    """
    opened = closed = False
    for number, line in enumerate(file, 1):
        text = decode(line).strip()
        if number == 1 and (opening := OPENING.match(text)):
            opened, text = True, text[opening.end() :].lstrip()
        text = text.removesuffix(",")
        if text == "]}" or text.endswith("}]}"):
            closed, text = True, text[:-2]
        if text:
            yield parse_article(text, f"{path}:{number}", ("pmid",), "abstractText")
    if opened and not closed:
        raise CaiError(f"{path}: truncated, it does not end with ]}}; download it again")


def read_questions(paths: Sequence[Path]) -> dict[str, Question]:
    """The questions of Task B by id. The last component of each document's URL is the PMID of a relevant article.

    Raises CaiError for a broken file, and for a URL without a PMID.
    """
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
