"""Run a batch of searches with a single call into Java, in parallel on the JVM's own threads.

Calls into Java go one at a time (see indexes.jvm), so only Java's threads can search in parallel. Each search is a
java.lang.invoke.MethodHandle composed of Lucene's methods. (Java source would be easier to read, but users' machines
have no compiler, and a jar in the repository could not be reviewed.) It takes strings: the queries go to Java as JSON,
and the results return as JSON.
"""

import json
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import accumulate, groupby
from typing import Any

from cai_pyserini.indexes import jvm

LUCENE = "org.apache.lucene.search."
QUERY, SEARCHER, TOP_DOCS, SORT = LUCENE + "Query", LUCENE + "IndexSearcher", LUCENE + "TopDocs", LUCENE + "Sort"
MAPPER = "com.fasterxml.jackson.databind.ObjectMapper"
OBJECT, STRING, CLASS, LIST = "java.lang.Object", "java.lang.String", "java.lang.Class", "java.util.List"
BYTES = "org.apache.lucene.util.BytesRef"
INTEGER, REFERENCE = "java.lang.Integer", "java.util.concurrent.atomic.AtomicReference"
STREAM, BASE_STREAM = "java.util.stream.Stream", "java.util.stream.BaseStream"
FUNCTION, CONSUMER = "java.util.function.Function", "java.util.function.Consumer"
SCORE_DOC, INVOKE = LUCENE + "ScoreDoc", "java.lang.invoke."
CHARACTERS = 1 << 23  # per call into Java, which holds several copies
PRIMITIVES = {"int": "Integer", "long": "Long", "float": "Float", "double": "Double", "void": "Void"}


def one_step_search(searcher: Any, build: Any, order: Any) -> Any:
    """A handle (query, hits, hits) -> the best documents in `order`; `build` makes a Lucene query from strings."""
    # Without a manager, Lucene's search always scores the first 1,000 documents, and every hit a second time.
    managers = LUCENE + "TopFieldCollectorManager"
    manager = _lookup().findConstructor(_class(managers), _type("void", SORT, "int", LUCENE + "FieldDoc", "int"))
    manager = bind(bind(manager, 2, None), 0, order)
    search = bind(virtual(SEARCHER, "search", OBJECT, QUERY, LUCENE + "CollectorManager"), 0, searcher)
    return _from_strings(_feed(search, 1, manager), build)


def first_step(searcher: Any, build: Any) -> Any:
    """A handle (query, hits) -> the numbers of the best documents; `build` makes a Lucene query from strings."""
    number = _lookup().findGetter(_class(SCORE_DOC), "doc", _class("int")).asType(_type("int", OBJECT))
    stream, function = "java.util.stream.IntStream", "java.util.function.ToIntFunction"
    of_hits = _feed(virtual(STREAM, "mapToInt", stream, function), 1, _interface(function, number))
    numbers = reduce(_then, [_find(searcher), _stream_of_hits(), of_hits, virtual(stream, "toArray", "[I")])
    return _from_strings(numbers, build)


def two_step_search(searcher: Any, build_limited: Any, build: Any, order: Any) -> Any:
    """A handle (first query, candidates, query, candidates, hits) -> the best documents in `order` for the query, among
    the best candidates for the first query; `build_limited` and `build` make their Lucene queries from strings."""
    candidates = _then(_feed(_find(searcher), 0, build_limited), _without_scores())
    rescore = static(LUCENE + "QueryRescorer", "rescore", TOP_DOCS, SEARCHER, TOP_DOCS, QUERY, "double", "int")
    rescore = bind(bind(rescore, 3, jvm.java_class("java.lang.Double")(1.0)), 0, searcher)
    sorter = jvm.java_class(LUCENE + "SortRescorer")(order)
    sort = virtual(LUCENE + "SortRescorer", "rescore", TOP_DOCS, SEARCHER, TOP_DOCS, "int")
    return _from_strings(_feed(bind(sort, 0, sorter, searcher), 0, _feed(rescore, 0, candidates)), build)


def _find(searcher: Any) -> Any:
    """A handle (Lucene query, hits) -> TopDocs, in Lucene's own order."""
    return bind(virtual(SEARCHER, "search", TOP_DOCS, QUERY, "int"), 0, searcher)


def _without_scores() -> Any:
    """A handle that sets the scores of TopDocs to 0, because QueryRescorer adds to them."""
    score = _lookup().findSetter(_class(SCORE_DOC), "score", _class("float"))
    clear = bind(score, 1, jvm.java_class("java.lang.Float")(0.0)).asType(_type("void", OBJECT))
    each = _feed(virtual(STREAM, "forEach", "void", CONSUMER), 1, _interface(CONSUMER, clear))
    return _handles().foldArguments(_handles().identity(_class(TOP_DOCS)), _then(_stream_of_hits(), each))


def _stream_of_hits() -> Any:
    """A handle that makes a stream of the hits in TopDocs."""
    hits = _lookup().findGetter(_class(TOP_DOCS), "scoreDocs", _class(f"[L{SCORE_DOC};"))
    return _then(hits, static("java.util.Arrays", "stream", STREAM, f"[L{OBJECT};"))


def filtered_query(build: Any, filter: Any) -> Any:
    """A handle that makes queries like `build`, limited to documents that match the query which the AtomicReference
    `filter` holds at the time of the call."""
    clauses, occur = LUCENE + "BooleanQuery$Builder", LUCENE + "BooleanClause$Occur"
    new = _lookup().findConstructor(_class(clauses), _type("void"))
    add, occurs = virtual(clauses, "add", clauses, QUERY, occur), jvm.java_class(occur)
    current = bind(virtual(REFERENCE, "get", OBJECT), 0, filter)
    scored = _feed(_then(new, bind(add, 2, occurs.MUST)), 0, build)
    both = _then(scored, _feed(bind(add, 2, occurs.FILTER), 1, current))
    return _then(both, virtual(clauses, "build", LUCENE + "BooleanQuery"))


def id_query(mapper: Any) -> Any:
    """A handle that makes a query for documents with these ids, a JSON array; `mapper` is an ObjectMapper."""
    bytes = _lookup().findConstructor(_class(BYTES), _type("void", "java.lang.CharSequence"))
    query = _lookup().findConstructor(_class(LUCENE + "TermInSetQuery"), _type("void", STRING, "java.util.Collection"))
    return reduce(_then, [_json_reader(mapper, f"[L{STRING};"), _map(bytes), bind(query, 0, "id")])


class Batch:
    """Applies a handle that takes strings to many tuples of arguments in one call."""

    def __init__(self, function: Any, mapper: Any):
        """`mapper` is an ObjectMapper, for JSON."""
        write = bind(virtual(MAPPER, "writeValueAsString", STRING, OBJECT), 0, mapper)
        one = _then(function, write).asSpreader(_class(f"[L{STRING};"), function.type().parameterCount())
        groups = _map_lines(_map_lines(one), virtual(BASE_STREAM, "parallel", BASE_STREAM))
        self._run = _then(_json_reader(mapper, f"[[[L{STRING};"), groups)

    def __call__(self, arguments: Sequence[Sequence[str]], threads: int) -> list[str]:
        """The results as JSON, from up to `threads` threads, but no more than there are processors."""
        count = max(1, min(threads, len(arguments)))
        text = json.dumps([arguments[group::count] for group in range(count)])
        lines = self._run.invokeWithArguments(jvm.java_class("java.util.Collections").singletonList(text)).split("\n")
        order = [number for group in range(count) for number in range(group, len(arguments), count)]
        return [line for _, line in sorted(zip(order, lines, strict=True))]


def parts(arguments: Sequence[Sequence[str]]) -> Iterator[list[Sequence[str]]]:
    """The arguments in parts of at most about CHARACTERS, one for each call."""
    ends = accumulate(sum(map(len, strings)) for strings in arguments)
    for _, part in groupby(zip(ends, arguments, strict=True), lambda item: item[0] // CHARACTERS):
        yield [strings for _, strings in part]


def bind(handle: Any, position: int, *values: Any) -> Any:
    """Bind values, Java objects or strings, to the parameters of a handle from `position` on."""
    return _handles().insertArguments(handle, position, *values)


def virtual(owner: str, name: str, *types: str) -> Any:
    """A handle of a method, with the object as first parameter; `types` are those of the result and the parameters."""
    return _lookup().findVirtual(_class(owner), name, _type(*types))


def static(owner: str, name: str, *types: str) -> Any:
    """A handle of a static method; `types` are those of the result and the parameters."""
    return _lookup().findStatic(_class(owner), name, _type(*types))


def _json_reader(mapper: Any, kind: str) -> Any:
    """A handle that reads an object of a class from JSON."""
    return bind(bind(virtual(MAPPER, "readValue", OBJECT, STRING, CLASS), 0, mapper), 1, _class(kind))


def _map_lines(function: Any, *stream_methods: Any) -> Any:
    """Like _map, but joins the results by line breaks."""
    join = bind(static(STRING, "join", STRING, "java.lang.CharSequence", "java.lang.Iterable"), 0, "\n")
    return _then(_map(function, *stream_methods), join)


def _map(function: Any, *stream_methods: Any) -> Any:
    """A handle that applies a function to every element of an array and returns the list of results; `stream_methods`
    are called on the stream first."""
    apply = _feed(virtual(STREAM, "map", STREAM, FUNCTION), 1, _interface(FUNCTION, function))
    stream = static("java.util.Arrays", "stream", STREAM, f"[L{OBJECT};")
    return reduce(_then, [stream, *stream_methods, apply, virtual(STREAM, "toList", LIST)])


def _interface(name: str, function: Any) -> Any:
    """A handle that makes an object of a functional interface."""
    make = static(INVOKE + "MethodHandleProxies", "asInterfaceInstance", OBJECT, CLASS, INVOKE + "MethodHandle")
    return bind(make, 0, _class(name), function)


def _from_strings(handle: Any, build: Any) -> Any:
    """A handle that takes strings instead of queries and integers."""
    integers = {"int": "parseInt", INTEGER: "valueOf"}
    readers = {kind: static(INTEGER, name, kind, STRING) for kind, name in integers.items()} | {QUERY: build}
    position = 0
    while position < handle.type().parameterCount():
        if reader := readers.get(handle.type().parameterList().get(position).getName()):
            handle = _feed(handle, position, reader)
        else:
            position += 1
    return handle


def _then(first: Any, second: Any) -> Any:
    return _feed(second, 0, first)


def _feed(handle: Any, position: int, source: Any) -> Any:
    """Feed the result of `source` to one parameter of a handle, which the parameters of `source` replace."""
    kind = source.type().changeReturnType(handle.type().parameterList().get(position))
    kind = jvm.start().cast(INVOKE + "MethodType", kind)  # pyjnius takes it for an interface of this class
    return _handles().collectArguments(handle, position, source.asType(kind))


def _handles() -> Any:
    return jvm.java_class(INVOKE + "MethodHandles")


def _lookup() -> Any:
    return _handles().publicLookup()


def _type(*names: str) -> Any:
    return jvm.java_class(INVOKE + "MethodType").methodType(*map(_class, names))


def _class(name: str) -> Any:
    if name in PRIMITIVES:
        return jvm.java_class(f"java.lang.{PRIMITIVES[name]}").TYPE
    return jvm.java_class(CLASS).forName(name)
