"""Read JSON vectors, from the impact stage or another tool, into the format of Lucene's analyzer.

A document becomes `term␁impact term␁impact …`; see `indexes.writer`.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from cai_pyserini.core import artifact, jsonl
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.metadata import LONGEST_TERM

DELIMITER = "\x01"  # between term and impact; in no vocabulary, and not white space to Java
# Separators of Lucene's whitespace tokenizer: not no-break spaces, unlike Python's; BM25 words can have these.
SPACE = re.compile("[\t-\r\x1c- \u1680\u2000-\u2006\u2008-\u200a\u2028\u2029\u205f\u3000]")
WRITERS = ("impact",)  # stages whose outputs are JSON vectors with an encoder.yaml
FRONT, MIDDLE, BACK = '{"id": "', '", "contents": "", "vector": {"', "}}"  # parts of the impact stage's lines


def read_vectors(files: list[Path]) -> Iterator[tuple[str, str, str, str]]:
    """Yield (`file:line`, line, id, delimited contents) of every JSON vector in the files of a folder."""
    manifest = artifact.require_if_ours(files[0].parent)
    ours = manifest is not None and manifest.recipe["stage"] in WRITERS
    for file in files:
        for where, line in jsonl.read_lines(file):
            yield where, line, *_parse(line, where, ours)


def _parse(line: str, where: str, ours: bool) -> tuple[str, str]:
    """Id and delimited contents of a JSON vector. Lines in the format of the impact stage are sliced, not parsed, which
    saves a quarter of the processor time of indexing (98,694 joint vectors: 14.4 s instead of 19.5 s). The stage
    writes them from a matrix, so in `ours` no term can occur twice."""
    middle = line.find(MIDDLE)
    if middle > 0 and line.startswith(FRONT) and line.endswith(BACK + "\n") and line.isascii() and "\\" not in line:
        id = line[len(FRONT) : middle]
        # A replacement of equal length is twice as fast, because the rest need not move.
        body = line[middle + len(MIDDLE) : -len(BACK) - 1].replace(', "', "   ").replace('": ', DELIMITER)
        one_term_each = '"' not in body and body.count(" ") == 3 * (body.count(DELIMITER) - 1)
        no_empty_term = body[:1] != DELIMITER and f" {DELIMITER}" not in body
        unique = ours or len({*body.replace(DELIMITER, "   ").split("   ")[::2]}) == body.count(DELIMITER)
        if one_term_each and no_empty_term and unique and '"' not in id and id.split() == [id]:
            return id, body  # not parsed further: Lucene rejects impacts that are not positive integers
    return parse_checked(line, where)


def parse_checked(line: str, where: str) -> tuple[str, str]:
    """Id and delimited contents of a JSON vector. Raises CaiError as `parse_vector` does."""
    id, vector = parse_vector(line, where)
    return id, " ".join([f"{term}{DELIMITER}{impact}" for term, impact in vector.items()])


def parse_vector(line: str, where: str) -> tuple[str, dict[str, int]]:
    """Id and impacts of a JSON vector. Raises CaiError for an invalid one; the message begins with `where`."""
    data = jsonl.parse(line, where)
    id, vector = data.get("id"), data.get("vector")
    if not isinstance(vector, dict):
        raise CaiError(f'{where}: expected {{"id": …, "contents": …, "vector": {{term: impact, …}}}}')
    if not isinstance(id, str) or id.split() != [id]:
        raise CaiError(f"{where}: the id {id!r} is not a string, is empty or has white space")
    for term, impact in vector.items():
        if not term or SPACE.search(term) or DELIMITER in term:
            raise CaiError(f"{where}: the term {term!r} is empty or has white space, which an index cannot hold")
        if (size := len(term.encode())) > LONGEST_TERM:
            raise CaiError(f"{where}: the term {term[:20]}… has {size:,} bytes; Lucene takes {LONGEST_TERM:,}")
        if not isinstance(impact, int) or isinstance(impact, bool) or not 1 <= impact < 2**31:
            raise CaiError(f"{where}: the impact of {term!r} is {impact!r}; it must be an integer from 1 to 2147483647")
    return id, vector
