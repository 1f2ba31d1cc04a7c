import json
import logging
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Literal

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.flags import DEVICE, FILTER, QUERY
from cai_pyserini.core.settings import AnyPath, Command, Main, flag
from cai_pyserini.core.terminal import BOLD, PLAIN, printable, shows_bold

if TYPE_CHECKING:
    from cai_pyserini.core.metadata import Value
    from cai_pyserini.engine.explanation import Explanation
    from cai_pyserini.engine.found import Described
    from cai_pyserini.engine.highlight import Marked
    from cai_pyserini.engine.search import Engine

logger = logging.getLogger(__name__)
HITS = 10  # hits shown of each query
TERMS = 6  # terms shown of each score


class Search(Command):
    """Search a run folder or an index.

    Queries are arguments or lines of standard input; on a terminal you are asked for them. Each hit is shown with its
    title, a snippet, and the terms or parts that its score consists of. `cai-pyserini stage search` writes TREC runs.
    """

    example = (
        'cai-pyserini search runs/hpo/splade-tiny "short fingers"\n'
        '  cai-pyserini search runs/hpo/splade-tiny --system bm25 "short fingers" "long toes"'
    )
    run: AnyPath = flag(help="run folder, or the folder of an index", positional=True)
    queries: list[str] = flag(
        [], "texts to search for; quote each that has several words; -: lines of standard input", positional=True
    )
    system: str | None = flag(None, "system of the run to search with (default: the best that has indexes)")
    hits: int = flag(HITS, "hits per query", ge=1)
    filter: str | None = FILTER
    sort: str | None = flag(None, "order the best hits by a field of metadata; with - before it, largest values first")
    syntax: bool = flag(False, 'a "quoted phrase" in a query must occur as such, and a -word must not occur')
    facets: list[str] = flag([], "fields of metadata whose most frequent values are counted")
    format: Literal["text", "json"] = flag("text", "how hits are shown; json: one object per line")
    encoder: str | None = flag(None, "of an index: query encoder; a dense index needs it (default: the index's own)")
    query: Literal["splade", "bow"] | None = QUERY
    device: str = DEVICE

    def execute(self) -> None:
        from_stdin = self.queries in ([], ["-"])
        asks = not self.queries and sys.stdin.isatty()
        queries = iter(()) if asks else _queries(self)

        from cai_pyserini.indexes.filters import without_operators

        engine = _opened(self)
        several = not asks and (from_stdin or len(self.queries) > 1)
        for query in _asked(engine.name) if asks else queries:
            text, filters = without_operators(query, self.filter) if self.syntax else (query, self.filter)
            hits = engine.describe(text, self.hits, 0, filters, self.sort)
            facets = engine.facets(self.facets, text, filters) if self.facets else {}
            if self.format == "json":
                for hit in hits:
                    print(_as_json(query, hit))
                if facets:
                    print(json.dumps({"query": query, "facets": facets}, ensure_ascii=False))
            else:
                lines = [line for hit in hits for line in _as_text(hit, shows_bold())] or ["no hits"]
                lines += _facet_lines(facets)
                print("\n".join([query, *lines] if several else lines), end="\n\n", flush=True)
        engine.close()


def _opened(settings: Search) -> "Engine":
    """The system to search with. Raises CaiError for a folder that is neither a run nor an index."""
    from cai_pyserini.core.artifact import require_if_ours
    from cai_pyserini.core.files import without_links
    from cai_pyserini.engine.open import Run, open_index

    folder = without_links(settings.run)
    if require_if_ours(folder):
        if settings.system:
            raise CaiError(f"{folder} is an index: --system is of a run folder")
        return open_index(folder, settings.encoder, settings.query, settings.device)
    if settings.encoder or settings.query:
        raise CaiError(f"{folder} is a run folder: --encoder and --query are of an index")
    run = Run(folder, settings.device)
    return run.open(settings.system or run.best_name)


def _as_text(described: "Described", bold: bool) -> Iterator[str]:
    """Yield the lines of a hit: title, snippet, metadata and contributions; matching words in bold if `bold`."""
    hit, explanation, title, snippet, _, page = described
    yield f"{hit.rank:>3}. {hit.score:.4f}  {hit.id}  {' '.join(_text(title, bold).split())}".rstrip()
    if snippet:
        yield f"     {f'page {page}: ' if page else ''}{_text(snippet, bold)}"
    if metadata := described.metadata:
        yield "     " + printable(", ".join(f"{name}: {_value(value)}" for name, value in metadata.items()))
    if explanation.terms or explanation.parts:
        yield f"     {' · '.join(_contributions(explanation))}"


def _as_json(query: str, described: "Described") -> str:
    """A hit as a JSON object: query, rank, id, score, title, snippet, page, passage with its place, metadata, terms or
    parts."""
    hit, explanation, title, snippet, _, page = described
    fields = {"query": query, "rank": hit.rank, "id": hit.id, "score": hit.score}
    fields |= {"title": _text(title), "snippet": _text(snippet)} | ({"page": page} if page else {})
    fields |= {"passage": hit.passage, "start": hit.start, "end": hit.end} if hit.passage else {}
    fields |= {"metadata": described.metadata} if described.metadata else {}
    if explanation.parts:
        fields["parts"] = {part.explanation.system: _significant(part.share) for part in explanation.parts}
    else:
        fields["terms"] = {term.term: _significant(term.contribution) for term in explanation.terms}
    return json.dumps(fields, ensure_ascii=False)


def _value(value: "Value") -> str:
    return "; ".join(value) if isinstance(value, list) else str(value)


def _facet_lines(facets: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """Yield a line per field: its values and their numbers of documents."""
    for name, counts in facets.items():
        yield f"{name}: " + (", ".join(f"{printable(value)} ({count:,})" for value, count in counts.items()) or "none")


def _significant(value: float) -> float:
    return float(f"{value:.6g}")


def _text(pieces: "Marked", bold: bool = False) -> str:
    """Join the pieces; with `bold`, for a terminal, in which matching words are bold and no text can be an escape."""
    if not bold:
        return "".join(piece for piece, _ in pieces)
    return "".join(f"{BOLD}{printable(p)}{PLAIN}" if strength else printable(p) for p, strength in pieces)


def _contributions(explanation: "Explanation") -> Iterator[str]:
    """Yield the largest contributions to a score, and the sum of the others."""
    for part in explanation.parts:
        yield f"{part.explanation.system} {part.share:.4g}"
    for term in explanation.terms[:TERMS]:
        yield f"{term.term} {term.contribution:.4g}"
    if others := explanation.terms[TERMS:]:
        yield f"{len(others)} more {math.fsum(term.contribution for term in others):.4g}"


def _queries(settings: Search) -> Iterator[str]:
    """The queries of arguments or of standard input. Raises CaiError at once if there are none."""
    if (words := settings.queries) not in ([], ["-"]):
        if len(words) > 1 and all(len(word.split()) == 1 for word in words):
            logger.info(
                'these are %d queries; a query of several words needs quotes: "%s"', len(words), " ".join(words)
            )
        return iter(words)
    queries = filter(None, map(str.strip, sys.stdin))
    if (first := next(queries, None)) is None:
        raise CaiError("standard input has no queries")
    return chain([first], queries)


def _asked(name: str) -> Iterator[str]:
    """Yield queries that are typed on the terminal."""
    import readline  # noqa: F401, line editing and history for input()

    print(f"searching with {name}; an empty line ends", file=sys.stderr)
    with suppress(EOFError):
        while text := input("> ").strip():
            yield text


main = Main(Search, "search")
