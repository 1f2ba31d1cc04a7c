"""Bilingual glossaries: words, terms and sentences of other languages with translations into that of the documents.

A line has the language, the text and its translation, separated by tabs:

    de	Bluthochdruck	hypertension
"""

from pathlib import Path

from cai_pyserini.core import jsonl
from cai_pyserini.core.config import LANGUAGES
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.text import normalized


def read_glossary(path: Path, language: str) -> dict[str, list[tuple[str, str]]]:
    """The texts and translations of a glossary by the language of the texts, each pair once. `language` is that of the
    documents. Raises CaiError for a line that is not as above, and an empty file."""
    others = sorted({*LANGUAGES} - {language})
    if language not in LANGUAGES:
        raise CaiError(f"{path}: a glossary translates to one language, and the documents have several, {language}")
    pairs: dict[str, dict[tuple[str, str], None]] = {}
    for where, line in jsonl.read_lines(path):
        code, *texts = (normalized(field).strip() for field in line.split("\t"))
        if len(texts) != 2 or not all(texts):
            raise CaiError(f"{where}: should be a language, a text and its translation, separated by tabs")
        if code not in others:
            raise CaiError(f"{where}: the language of the text is {code!r}, but should be one of {', '.join(others)}")
        pairs.setdefault(code, {})[texts[0], texts[1]] = None
    if not pairs:
        raise CaiError(f"{path} is empty: a line should be a language, a text and its translation, separated by tabs")
    return {code: [*found] for code, found in pairs.items()}
