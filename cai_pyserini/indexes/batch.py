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
INTEGER, REFERENCE = "java.lang.Integer", "java.util.concurrent.atomic.AtomicReference"
STREAM, BASE_STREAM = "java.util.stream.Stream", "java.util.stream.BaseStream"
FUNCTION = "java.util.function.Function"
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
    search = bind(virtual(SEARCHER, "search", TOP_DOCS, QUERY, "int"), 0, searcher)
    hits = _lookup().findGetter(_class(TOP_DOCS), "scoreDocs", _class(f"[L{SCORE_DOC};"))
    stream_of_hits = static("java.util.Arrays", "stream", STREAM, f"[L{OBJECT};")
    number = _lookup().findGetter(_class(SCORE_DOC), "doc", _class("int")).asType(_type("int", OBJECT))
    stream, function = "java.util.stream.IntStream", "java.util.function.ToIntFunction"
    of_hits = _feed(virtual(STREAM, "mapToInt", stream, function), 1, _interface(function, number))
    numbers = reduce(_then, [search, hits, stream_of_hits, of_hits, virtual(stream, "toArray", "[I")])
    return _from_strings(numbers, build)


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


class Batch:
    """Applies a handle that takes strings to many tuples of arguments in one call."""

    def __init__(self, function: Any, mapper: Any):
        """`mapper` is an ObjectMapper, for JSON."""
        write = bind(virtual(MAPPER, "writeValueAsString", STRING, OBJECT), 0, mapper)
        one = _then(function, write).asSpreader(_class(f"[L{STRING};"), function.type().parameterCount())
        groups = _map_lines(_map_lines(one), virtual(BASE_STREAM, "parallel", BASE_STREAM))
        read = bind(virtual(MAPPER, "readValue", OBJECT, STRING, CLASS), 0, mapper)
        self._run = _then(bind(read, 1, _class(f"[[[L{STRING};")), groups)

    def __call__(self, arguments: Sequence[Sequence[str]], threads: int) -> list[str]:
        """The results as JSON, from up to `threads` threads, but no more than there are processors."""
        count = max(1, min(threads, len(arguments)))
        text = json.dumps([arguments[group::count] for group in range(count)])
        lines = self._run.invokeWithArguments(jvm.java_class("java.util.Collections").singletonList(text)).split("\n")
        order = [number for group in range(count) for number in range(group, len(arguments), count)]
        return [line for _, line in sorted(zip(order, lines, strict=True))]


def terms(mapper: Any) -> Any:
    """A handle that makes a list of Lucene's BytesRef of strings, as a JSON array."""
    read = bind(virtual(MAPPER, "readValue", OBJECT, STRING, CLASS), 0, mapper)
    read = bind(read, 1, _class(f"[L{STRING};"))
    new = _lookup().findConstructor(_class("org.apache.lucene.util.BytesRef"), _type("void", "java.lang.CharSequence"))
    make = _feed(virtual(STREAM, "map", STREAM, FUNCTION), 1, _interface(FUNCTION, new))
    stream = static("java.util.Arrays", "stream", STREAM, f"[L{OBJECT};")
    return reduce(_then, [read, stream, make, virtual(STREAM, "toList", LIST)])


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


def _map_lines(function: Any, *stream_methods: Any) -> Any:
    """A handle that applies a function to every element of an array and joins the results by line breaks;
    `stream_methods` are called on the stream first."""
    apply = _feed(virtual(STREAM, "map", STREAM, FUNCTION), 1, _interface(FUNCTION, function))
    stream = static("java.util.Arrays", "stream", STREAM, f"[L{OBJECT};")
    join = bind(static(STRING, "join", STRING, "java.lang.CharSequence", "java.lang.Iterable"), 0, "\n")
    return reduce(_then, [stream, *stream_methods, apply, virtual(STREAM, "toList", LIST), join])


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
