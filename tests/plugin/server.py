"""A server that speaks as much of the protocol of OpenSearch and Elasticsearch as loading an index needs."""

import json
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from typing import Any

from tests.servers import Handler

Json = dict[str, Any]


class Server(ThreadingHTTPServer):
    """`indexes` have the body they were created with, and documents by id; a bulk request asks `fault` of its number,
    from 0, and the id of each document, for a status other than 201."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.indexes: dict[str, tuple[Json, dict[str, Json]]] = {}
        self.aliases: dict[str, str] = {}
        self.actions: list[Json] = []
        self.bulk_actions: list[Json] = []
        self.bulk_sizes: list[int] = []
        self.fault: Callable[[int, str], int] = lambda request, id: 201

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def documents(self, alias: str) -> dict[str, Json]:
        return self.indexes[self.aliases[alias]][1]

    def body(self, alias: str) -> Json:
        return self.indexes[self.aliases[alias]][0]

    def respond(self, method: str, path: list[str], lines: list[Json]) -> tuple[int, Json]:
        match method, path:
            case "GET", [name, "_alias"]:
                index = self.aliases.get(name, name)
                found = {index: {"aliases": {name: {}} if name in self.aliases else {}}}
                return (200, found) if index in self.indexes else (404, {"error": f"alias [{name}] missing"})
            case "DELETE", [index]:
                self.indexes.pop(index, None)
                return 200, {"acknowledged": True}
            case "PUT", [index] if index not in self.indexes | self.aliases:
                self.indexes[index] = (lines[0], {})
                return 200, {"acknowledged": True}
            case "PUT" | "POST", [index, "_bulk"]:
                return self._bulk(index, lines)
            case "POST", [_, "_refresh"]:
                return 200, {}
            case "GET" | "POST", [index, "_count"]:
                return 200, {"count": len(self.indexes[index][1])}
            case "POST", ["_aliases"]:
                for action in lines[0]["actions"]:
                    self.actions.append(action)
                    if "add" in action:
                        self.aliases[action["add"]["alias"]] = action["add"]["index"]
                    else:
                        del self.indexes[action["remove_index"]["index"]]
                return 200, {"acknowledged": True}
        return 400, {"error": {"type": "illegal_argument_exception", "reason": f"{method} {path}"}, "status": 400}

    def _bulk(self, index: str, lines: list[Json]) -> tuple[int, Json]:
        """Status 429 of document "*" refuses the whole request; status 0 loses a document silently."""
        number = len(self.bulk_sizes)
        self.bulk_sizes.append(len(lines))
        if self.fault(number, "*") == 429:
            return 429, {"error": {"type": "circuit_breaking_exception", "reason": "busy"}, "status": 429}
        items = []
        for action, document in zip(lines[::2], lines[1::2], strict=True):
            self.bulk_actions.append(action)
            id = action["index"]["_id"]
            status = self.fault(number, id)
            if status == 201:
                self.indexes[index][1][id] = document
            error = (
                {"error": {"type": "mapper_parsing_exception", "reason": f"status {status}"}} if status > 201 else {}
            )
            items.append({"index": {"_index": index, "_id": id, "status": status or 201, **error}})
        return 200, {"took": 1, "errors": any("error" in item["index"] for item in items), "items": items}


class _Handler(Handler):
    server: Server

    def _answer(self) -> None:
        content = self.body()
        path = self.path.partition("?")[0].strip("/").split("/")
        if "_bulk" in path:
            assert content.endswith(b"\n")  # servers require it
        lines = [json.loads(line) for line in content.splitlines()]
        status, body = self.server.respond(self.command, path, lines)
        product = {"X-Elastic-Product": "Elasticsearch"}  # without which its client refuses to go on
        self.answer(status, json.dumps(body).encode(), {"Content-Type": "application/json"} | product)

    do_GET = do_POST = do_PUT = do_DELETE = _answer
