"""Searches composed in Java, so that a batch of them is one call, which the JVM's own threads share.

Calls into Java go one at a time, see core.jvm, so the threads have to be Java's. What they do is a composition of
java.lang.invoke.MethodHandles, of Lucene's methods, that takes strings: those of all queries go to Java as JSON, and
the results return as JSON.
"""

import json
from collections.abc import Sequence
from functools import reduce
from typing import Any

from cai_pyserini.core import jvm

LUCENE = "org.apache.lucene.search."
QUERY, SEARCHER, TOP_DOCS, SORT = LUCENE + "Query", LUCENE + "IndexSearcher", LUCENE + "TopDocs", LUCENE + "Sort"
MAPPER = "com.fasterxml.jackson.databind.ObjectMapper"
OBJECT, STRING, CLASS, LIST = "java.lang.Object", "java.lang.String", "java.lang.Class", "java.util.List"
BYTES = "org.apache.lucene.util.BytesRef"
INTEGER, REFERENCE = "java.lang.Integer", "java.util.concurrent.atomic.AtomicReference"
STREAM, BASE_STREAM = "java.util.stream.Stream", "java.util.stream.BaseStream"
FUNCTION, INVOKE = "java.util.function.Function", "java.lang.invoke."
PRIMITIVES = {"int": "Integer", "double": "Double", "void": "Void"}


def whole_search(searcher: Any, build: Any, order: Any) -> Any:
    """A handle (query, hits, hits) -> the best documents in this order; `build` makes a query of its strings."""
    # Lucene's search without a manager would score the first 1,000 documents in any case, and every hit a second time.
    managers = LUCENE + "TopFieldCollectorManager"
    manager = _lookup().findConstructor(_class(managers), _type("void", SORT, "int", LUCENE + "FieldDoc", "int"))
    manager = bound(bound(manager, 2, None), 0, order)
    search = bound(virtual(SEARCHER, "search", OBJECT, QUERY, LUCENE + "CollectorManager"), 0, searcher)
    return _of_strings(_fed(search, 1, manager), build)


def two_step_search(searcher: Any, build: Any, order: Any) -> Any:
    """A handle (query, candidates, rest of the query, candidates, hits) -> the best documents in this order: the
    candidates that the query finds, rescored with the rest added."""
    find = bound(virtual(SEARCHER, "search", TOP_DOCS, QUERY, "int"), 0, searcher)
    rescore = static(LUCENE + "QueryRescorer", "rescore", TOP_DOCS, SEARCHER, TOP_DOCS, QUERY, "double", "int")
    rescore = bound(bound(rescore, 3, jvm.java_class("java.lang.Double")(1.0)), 0, searcher)
    sorter = jvm.java_class(LUCENE + "SortRescorer")(order)
    sort = virtual(LUCENE + "SortRescorer", "rescore", TOP_DOCS, SEARCHER, TOP_DOCS, "int")
    return _of_strings(_fed(bound(sort, 0, sorter, searcher), 0, _fed(rescore, 0, find)), build)


def filtered(build: Any, filter: Any) -> Any:
    """A handle that makes queries as `build` does, and has them find only documents of the query that is in `filter`,
    an AtomicReference, when it is called."""
    clauses, occur = LUCENE + "BooleanQuery$Builder", LUCENE + "BooleanClause$Occur"
    new = _lookup().findConstructor(_class(clauses), _type("void"))
    add, occurs = virtual(clauses, "add", clauses, QUERY, occur), jvm.java_class(occur)
    current = bound(virtual(REFERENCE, "get", OBJECT), 0, filter)
    scored = _fed(_then(new, bound(add, 2, occurs.MUST)), 0, build)
    both = _then(scored, _fed(bound(add, 2, occurs.FILTER), 1, current))
    return _then(both, virtual(clauses, "build", LUCENE + "BooleanQuery"))


def documents(mapper: Any) -> Any:
    """A handle that makes a query of documents of their ids, as JSON; `mapper` is an ObjectMapper."""
    bytes = _lookup().findConstructor(_class(BYTES), _type("void", "java.lang.CharSequence"))
    these = _lookup().findConstructor(_class(LUCENE + "TermInSetQuery"), _type("void", STRING, "java.util.Collection"))
    return reduce(_then, [_reading(mapper, f"[L{STRING};"), _each(bytes), bound(these, 0, "id")])


class Batch:
    """A function of strings, a handle, that is applied to many arguments at a time."""

    def __init__(self, function: Any, mapper: Any):
        """`mapper` is an ObjectMapper, for JSON."""
        write = bound(virtual(MAPPER, "writeValueAsString", STRING, OBJECT), 0, mapper)
        one = _then(function, write).asSpreader(_class(f"[L{STRING};"), function.type().parameterCount())
        groups = _lines(_lines(one), virtual(BASE_STREAM, "parallel", BASE_STREAM))
        self._run = _then(_reading(mapper, f"[[[L{STRING};"), groups)

    def __call__(self, arguments: Sequence[Sequence[str]], threads: int) -> list[str]:
        """The results as JSON, from as many threads, but no more than there are processors."""
        count = max(1, min(threads, len(arguments)))
        text = json.dumps([arguments[group::count] for group in range(count)])
        lines = self._run.invokeWithArguments(jvm.java_class("java.util.Collections").singletonList(text)).split("\n")
        order = [number for group in range(count) for number in range(group, len(arguments), count)]
        return [line for _, line in sorted(zip(order, lines, strict=True))]


def bound(handle: Any, place: int, *values: Any) -> Any:
    """A handle with values, Java objects or strings, for its parameters from `place` on."""
    return _handles().insertArguments(handle, place, *values)


def virtual(owner: str, name: str, *types: str) -> Any:
    """A method of a class, whose first parameter is the object; `types` are those of its result and parameters."""
    return _lookup().findVirtual(_class(owner), name, _type(*types))


def static(owner: str, name: str, *types: str) -> Any:
    """A static method of a class; `types` are those of its result and its parameters."""
    return _lookup().findStatic(_class(owner), name, _type(*types))


def _reading(mapper: Any, kind: str) -> Any:
    """A handle that reads an object of a class from JSON."""
    return bound(bound(virtual(MAPPER, "readValue", OBJECT, STRING, CLASS), 0, mapper), 1, _class(kind))


def _lines(function: Any, *of_stream: Any) -> Any:
    """As _each, with the results joined, a line each."""
    join = bound(static(STRING, "join", STRING, "java.lang.CharSequence", "java.lang.Iterable"), 0, "\n")
    return _then(_each(function, *of_stream), join)


def _each(function: Any, *of_stream: Any) -> Any:
    """A handle that applies a function to every element of an array, and returns the list of the results."""
    make = static(INVOKE + "MethodHandleProxies", "asInterfaceInstance", OBJECT, CLASS, INVOKE + "MethodHandle")
    make = bound(make, 0, _class(FUNCTION), function)
    apply = _fed(virtual(STREAM, "map", STREAM, FUNCTION), 1, make)
    stream = static("java.util.Arrays", "stream", STREAM, f"[L{OBJECT};")
    return reduce(_then, [stream, *of_stream, apply, virtual(STREAM, "toList", LIST)])


def _of_strings(handle: Any, build: Any) -> Any:
    """A handle that takes strings where this one takes queries or integers."""
    integers = {"int": "parseInt", INTEGER: "valueOf"}
    readers = {kind: static(INTEGER, name, kind, STRING) for kind, name in integers.items()} | {QUERY: build}
    place = 0
    while place < handle.type().parameterCount():
        if reader := readers.get(handle.type().parameterList().get(place).getName()):
            handle = _fed(handle, place, reader)
        else:
            place += 1
    return handle


def _then(first: Any, second: Any) -> Any:
    return _fed(second, 0, first)


def _fed(handle: Any, place: int, source: Any) -> Any:
    """A handle with the parameters of `source` in place of one, which gets its result."""
    kind = source.type().changeReturnType(handle.type().parameterList().get(place))
    kind = jvm.start().cast(INVOKE + "MethodType", kind)  # pyjnius takes it for an interface of this class
    return _handles().collectArguments(handle, place, source.asType(kind))


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
