"""What every source is read as: articles with an id, a title and an abstract."""

from collections.abc import Sequence
from typing import NamedTuple

from cai_pyserini.collection.ids import checked_id
from cai_pyserini.core import jsonl
from cai_pyserini.core.errors import CaiError


class Article(NamedTuple):
    """An article as its source has it."""

    id: str
    title: str
    abstract: str | None  # empty if there is none; None if the source deletes the article


def parse_article(line: str, where: str, id_keys: Sequence[str], abstract_key: str) -> Article:
    """The article in one JSON line, whose id is under the first of `id_keys` that the object has.

    Raises CaiError, which begins with `where`, for a line without an id or an abstract; both texts may be null.
    """
    data = jsonl.parse(line, where, surrogates=True)
    id = next((data[key] for key in id_keys if key in data), None)
    title, abstract = data.get("title"), data.get(abstract_key, 0)
    if id is None or not isinstance(title, str | None) or not isinstance(abstract, str | None):
        raise CaiError(f"{where}: expected an object with {' or '.join(id_keys)}, and {abstract_key} (text or null)")
    return Article(checked_id(id, where), title or "", abstract or "")


def decode(data: bytes) -> str:
    """UTF-8, or else Latin-1, which some editions of BioASQ use."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


def one_line(text: str) -> str:
    """`text` in one line, without unpaired surrogates, which JSON can escape but UTF-8 cannot hold."""
    return " ".join(text.encode(errors="ignore").decode().split())
