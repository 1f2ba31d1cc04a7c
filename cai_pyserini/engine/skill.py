"""A skill for assistants, in Markdown: what indexes hold, how to search them, and how to quote from them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cai_pyserini.core.metadata import Kind
from cai_pyserini.core.template import template
from cai_pyserini.indexes.facets import Matches

TEMPLATE = Path(__file__).with_name("skill.md.jinja")
VALUES, LENGTH = 4, 40  # examples of a field, and characters of each
UNSAFE = re.compile(r"[\x00-\x1f\x7f`|<>]+")  # could end a cell of the table or a code span
FILTERS: dict[Kind, str] = {"number": "{name}>={value}", "date": "{name}>={value}"}  # others are equal to a value


class About(NamedTuple):
    """An index: its name, how it finds documents, their number, and the language of the words."""

    name: str
    description: str
    documents: int
    language: str


class Field(NamedTuple):
    """A field of metadata, examples of its values, and of a filter."""

    name: str
    kind: Kind
    values: str
    filter: str


def skill(title: str, use: str, indexes: Sequence[About], fields: Sequence[Field]) -> str:
    """The text of a SKILL.md, with front matter; `use` says how to call the search."""
    name = re.sub(r"[^a-z0-9]+", "-", f"search {title}".lower()).strip("-")[:64].rstrip("-")
    values = {"name": name, "title": title, "use": use, "indexes": indexes, "fields": fields}
    return template(TEMPLATE).render(values, filters=" AND ".join(field.filter for field in fields[:2]))


def fields_of(metadata: Mapping[str, Kind], matches: Matches | None) -> Iterator[Field]:
    """The fields of an index, with the most frequent values of the documents that match, if these can be counted."""
    for name, kind in metadata.items():
        found = [UNSAFE.sub(" ", value)[:LENGTH] for value in (matches.values(name, kind, VALUES) if matches else ())]
        example = found[0].replace('"', " ") if found else "…"
        filter = FILTERS.get(kind, '{name}:"{value}"').format(name=name, value=example)
        yield Field(name, kind, ", ".join(f"`{value}`" for value in found), filter)
