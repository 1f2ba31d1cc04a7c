import json
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from cai_pyserini.core import terminal
from cai_pyserini.core.flags import COLLECTION_TEXT, DEVICE, OR_URL, QUERY, REMOVE_QUERY, SPLIT, STRICT, THREADS
from cai_pyserini.core.settings import AnyPath, Argv, PathOrUrl, Settings, flag, parse
from cai_pyserini.core.store import StorePath
from cai_pyserini.core.terminal import BOLD, PLAIN, printable

if TYPE_CHECKING:
    from cai_pyserini.core.metadata import Value
    from cai_pyserini.engine.explanation import Explanation
    from cai_pyserini.engine.highlight import Marked
    from cai_pyserini.engine.search import Described

HITS = 10  # hits shown of each query
TERMS = 6  # terms shown of each score


class SearchSettings(Settings):
    """Search an index, or with a system of a run folder, and show the hits; with --output, write a TREC run instead.

    Queries are arguments or lines of standard input; on a terminal you are asked for them. Each hit is shown with its
    title, a snippet, and the terms or parts that make up its score.
    """

    example = (
        'cai-pyserini search --run runs/hpo/splade-tiny --system joint-splade-idf "short fingers"\n'
        "  cai-pyserini search --index index --collection hpo --output run.trec"
    )
    queries: list[str] = flag([], "texts to search for", positional=True)
    index: list[PathOrUrl] = flag(
        [],
        f"folder written by the index stage, {OR_URL}; or the folders of all its shards; give queries before it",
    )
    run: AnyPath | None = flag(None, "run folder, written by run_beir.sh, instead of an index")
    system: str | None = flag(None, "with --run: the system to search with (default: the best that has indexes)")
    hits: int | None = flag(
        None, f"hits per query (default: {HITS}; with --output the collection's, usually 1000)", ge=1
    )
    filter: str | None = flag(
        None, "search only documents with matching metadata and words, such as year>=2020 AND NOT contents:mouse"
    )
    sort: str | None = flag(None, "sort the best hits by a metadata field; with - before it, largest values first")
    syntax: bool = flag(False, 'a "quoted phrase" in a query must occur as such, and a -word must not occur')
    facets: list[str] = flag([], "metadata fields whose most frequent values are counted")
    format: Literal["text", "json"] = flag("text", "output format of hits; json: one object per line")
    encoder: str | None = flag(
        None, "query encoder; required for a dense index (default: the one an impact index was built with)"
    )
    query: Literal["splade", "bow"] | None = QUERY
    device: str = DEVICE
    topics: AnyPath | None = flag(
        None, "file of queries to search for: JSONL, Parquet, CSV, TSV with id and text, or TREC topics"
    )
    output: AnyPath | None = flag(None, "write a TREC run to this file; takes --index and --collection")
    collection: str | None = flag(None, f"queries of the run: {COLLECTION_TEXT}")
    split: str | None = SPLIT
    strict: bool | None = STRICT
    k1: float | None = flag(None, "k1 of BM25 (default: the collection's, usually 0.9)", ge=0)
    b: float | None = flag(None, "b of BM25 (default: the collection's, usually 0.4)", ge=0, le=1)
    remove_query: Literal["auto", "always", "never"] | None = REMOVE_QUERY
    threads: int = THREADS

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.index) == bool(self.run):
            raise ValueError("give either --index or --run")
        if missing := [path for path in self.index[1:] if not isinstance(path, StorePath) and not path.exists()]:
            raise ValueError(f"--index: no folder {missing[0]}; if this is a query, give it before --index")
        if self.output and not (self.index and self.collection):
            raise ValueError("--output takes --index and --collection")
        if self.output and (self.queries or self.topics):
            raise ValueError("--output takes the queries of --collection, and no others")
        if self.output and (self.sort or self.facets or self.syntax):
            raise ValueError("--sort, --facets and --syntax are for searches by hand, not for --output")
        index_only = ("encoder", "query") if self.run else ()
        output_only = () if self.output else ("collection", "split", "strict", "k1", "b", "remove_query")
        if refused := [name for name in (*index_only, *output_only) if getattr(self, name) is not None]:
            other = "--output" if refused[0] in output_only else "--index"
            raise ValueError(f"--{refused[0].replace('_', '-')} takes {other}")
        if self.system and not self.run:
            raise ValueError("--system takes --run")
        return self


def main(argv: Argv = None) -> None:
    settings = parse(SearchSettings, argv, "cai-pyserini search")

    from cai_pyserini.core.cache import index_here

    settings = settings.replace(index=[index_here(index) for index in settings.index])
    if settings.output:
        _write_run(settings)
    else:
        _show_hits(settings)


def _write_run(settings: SearchSettings) -> None:
    from cai_pyserini.collections.readers import open_collection
    from cai_pyserini.core.artifact import require
    from cai_pyserini.core.config import load_index_config
    from cai_pyserini.lucene.retrieve import queries_for, search
    from cai_pyserini.runs.trec import removes_query

    assert settings.output and settings.collection  # SearchSettings checks it
    changes = settings.model_dump(include={"k1", "b", "hits", "split", "remove_query", "strict"}, exclude_none=True)
    config = load_index_config(settings.collection).replace(**changes)
    collection, split = open_collection(config), config.split
    qrels = collection.qrels(split) if collection.has_qrels(split) else None
    topics = collection.topics(split)
    run = search(
        settings.index,
        queries_for(settings.index[0], topics, settings.encoder, settings.query, settings.device),
        settings.output,
        hits=config.hits,
        remove_query=removes_query(config.remove_query, qrels),
        k1=config.k1,
        b=config.b,
        threads=settings.threads,
        passages=config.passages is not None,
        filter=settings.filter,
    )
    stats = require(run, "search").stats
    print(f"{settings.output}: {stats['queries']:,} queries, {stats['ms_per_query']:.2f} ms per query")


def _show_hits(settings: SearchSettings) -> None:
    from cai_pyserini.engine.search import without_operators
    from cai_pyserini.experiments.open import OpenRun, open_index

    if settings.run:
        run = OpenRun(settings.run, settings.device)
        engine = run.open(settings.system or run.systems[0])
    else:
        engine = open_index(settings.index, settings.encoder, settings.query, settings.device)
    several = bool(settings.queries[1:] or settings.topics or not (settings.queries or sys.stdin.isatty()))
    for query in _queries(settings, engine.name):
        text, filters = without_operators(query, settings.filter) if settings.syntax else (query, settings.filter)
        hits = engine.describe(text, settings.hits or HITS, 0, filters, settings.sort)
        facets = engine.facets(settings.facets, text, filters) if settings.facets else {}
        if settings.format == "json":
            for hit in hits:
                print(_as_json(query, hit))
            if facets:
                print(json.dumps({"query": query, "facets": facets}, ensure_ascii=False))
        else:
            lines = [line for hit in hits for line in _as_text(hit, sys.stdout.isatty())] or ["no hits"]
            lines += _facet_lines(facets)
            print("\n".join([query, *lines] if several else lines), end="\n\n", flush=True)
    engine.close()


def _as_text(described: "Described", bold: bool) -> Iterator[str]:
    """Yield the lines of a hit: title, snippet, metadata and contributions; matching words in bold if `bold`."""
    hit, explanation, title, snippet, metadata = described
    yield f"{hit.rank:>3}. {hit.score:.4f}  {hit.id}  {' '.join(_text(title, bold).split())}".rstrip()
    if snippet:
        yield f"     {_text(snippet, bold)}"
    if metadata:
        yield "     " + printable(", ".join(f"{name}: {_value(value)}" for name, value in metadata.items()))
    if explanation.terms or explanation.parts:
        yield f"     {' · '.join(_contributions(explanation))}"


def _as_json(query: str, described: "Described") -> str:
    """A hit as a JSON object: query, rank, id, score, title, snippet, metadata and terms or parts."""
    hit, explanation, title, snippet, metadata = described
    fields = {"query": query, "rank": hit.rank, "id": hit.id, "score": hit.score}
    fields |= {"title": _text(title), "snippet": _text(snippet)} | ({"metadata": metadata} if metadata else {})
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


def _queries(settings: SearchSettings, name: str) -> Iterator[str]:
    """Yield queries from arguments, a topics file, the terminal or standard input."""
    from cai_pyserini.collections.records import Columns, read_records
    from cai_pyserini.core.errors import CaiError

    if settings.queries:
        yield from settings.queries
    elif settings.topics:
        for where, values in read_records(settings.topics, Columns()):
            if not isinstance(values["text"], str) or not values["text"].strip():
                raise CaiError(f"{where}: the query has no text")
            yield values["text"]
    elif sys.stdin.isatty():
        import readline  # noqa: F401, line editing and history for input()

        print(f"searching with {name}; an empty line ends", file=sys.stderr)
        with suppress(EOFError):
            while text := input("> ").strip():
                yield text
    else:
        yield from filter(None, map(str.strip, sys.stdin))


if __name__ == "__main__":
    terminal.run(main)
