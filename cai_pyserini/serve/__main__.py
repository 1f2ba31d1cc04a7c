import math
import os
import re
import signal
import sys
from functools import partial
from pathlib import Path
from socket import IPPROTO_TCP, TCP_NODELAY
from typing import Literal, Self

from pydantic import model_validator

from cai_pyserini.core import terminal
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.flags import DEVICE, OR_URL
from cai_pyserini.core.settings import AnyPath, Argv, PathOrUrl, Settings, flag, parse

KEY = "CAI_PYSERINI_API_KEY"
LONGEST_REQUEST = 1 << 19  # bytes without a body; three parameters of 10,000 characters, as %F0%9F%A7%AC, have 360,000


class ServeSettings(Settings):
    """Serve indexes and systems of run folders over HTTP: a page, a REST API for programs, and tools for assistants.

    The page is at /. The routes /v1/INDEX/search and /v1/INDEX/doc/ID are those of Anserini's and Pyserini's REST API;
    /v1/INDEX/explain says why a document has its score. There are /health (liveness), /ready (readiness), /metrics
    (Prometheus) and /openapi.json, and POST /reload reopens the indexes. Assistants find the tools of an MCP server at
    /mcp, or, with --stdio, on standard input and output. Only this machine is served unless --host says otherwise. With
    an API key, in the environment variable CAI_PYSERINI_API_KEY or a file, all routes but /health, /ready and
    /openapi.json need it.
    """

    example = (
        "python -m cai_pyserini.serve runs/hpo/splade-tiny --systems bm25 joint-splade-idf\n"
        "  curl 'http://127.0.0.1:8000/v1/joint-splade-idf/search?query=short+fingers&hits=3'"
    )
    folders: list[PathOrUrl] = flag(
        help=f"run folders, written by run_beir.sh; or the folder of an index, {OR_URL}", positional=True
    )
    systems: list[str] = flag([], "the systems of run folders to serve (default: all that have indexes)")
    host: str = flag(
        "127.0.0.1", f"address to listen on; one that other machines reach, such as 0.0.0.0, needs a key in {KEY}"
    )
    proxy_authenticates: bool = flag(
        False, "serve other machines without a key: a proxy in front of this server checks who may search"
    )
    key_file: AnyPath | None = flag(None, f"file that has the API key, instead of {KEY}")
    stdio: bool = flag(False, "no HTTP: speak MCP on standard input and output, with the program that started this")
    port: int = flag(8000, "port; 0: any that is free", ge=0, le=65535)
    queue: int = flag(256, "unanswered requests at most; further ones are refused with 429", ge=1)
    timeout: float = flag(30.0, "seconds after which a request times out with 503", gt=0)
    deadline_ms: float | None = flag(
        None,
        "milliseconds after which a hybrid is answered without the parts whose encoders are late, and reranking ends",
        gt=0,
    )
    cross_encoder: str | None = flag(None, "reranker, for searches with rerank=N: a folder or a Hugging Face model id")
    access_log: AnyPath | None = flag(None, "log requests to this file, a JSON object per line; a new file each day")
    access_log_days: int = flag(30, "days that the access log is kept", ge=1)
    access_log_queries: Literal["none", "hash", "text"] = flag(
        "none", "queries in the access log; hash: keyed, equal for equal queries until the service is restarted"
    )
    device: str = DEVICE

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.stdio and (
            given := self.model_fields_set & {"host", "port", "key_file", "proxy_authenticates", "access_log"}
        ):
            raise ValueError(f"--stdio serves no other machine: leave out --{min(given).replace('_', '-')}")
        return self


def main(argv: Argv = None) -> None:
    settings = parse(ServeSettings, argv, "python -m cai_pyserini.serve")

    import asyncio

    import uvicorn

    from cai_pyserini.search.open import Reranker, open_systems
    from cai_pyserini.serve.access_log import AccessLog
    from cai_pyserini.serve.app import create_app
    from cai_pyserini.serve.guard import is_loopback
    from cai_pyserini.serve.mcp import no_output, over_stdio
    from cai_pyserini.serve.service import Service

    open_all = partial(open_systems, settings.folders, settings.systems, settings.device)
    deadline = settings.deadline_ms / 1000 if settings.deadline_ms else math.inf
    rerank = Reranker(settings.cross_encoder, settings.device).scores if settings.cross_encoder else None
    opened = partial(Service, open_all, settings.queue, settings.timeout, deadline, rerank)
    if settings.stdio:
        with no_output():
            service = opened()
        print(f"serving {', '.join(service.engines)} on standard input and output", file=sys.stderr, flush=True)
        asyncio.run(over_stdio(service))
        return
    key = _api_key(is_loopback(settings.host) or settings.proxy_authenticates, settings.key_file)
    log = None
    if settings.access_log:
        log = AccessLog(settings.access_log, settings.access_log_days, settings.access_log_queries)
    service = opened()
    app = create_app(service, key, is_loopback(settings.host), log)
    config = uvicorn.Config(
        app,
        settings.host,
        settings.port,
        http="h11",  # which limits the length of a request
        h11_max_incomplete_event_size=LONGEST_REQUEST,
        log_level="warning",
        use_colors=False,
        access_log=False,
        server_header=False,
    )
    socket = config.bind_socket()
    socket.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)  # asyncio does so only for sockets of its own; saves 40 ms
    socket.listen()  # from now on, requests wait until the server has started
    host, port = socket.getsockname()[:2]
    place = f"[{host}]" if ":" in host else host
    print(f"serving {', '.join(service.engines)} at http://{place}:{port}/", file=sys.stderr, flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # which uvicorn raises again when it has finished
    try:
        uvicorn.Server(config).run([socket])
    finally:
        if log:
            log.close()


def _api_key(optional: bool, file: Path | None) -> str | None:
    """The key in a file, or else in the environment. Raises CaiError for one that clients cannot send, and for none
    unless `optional`."""
    key = file.read_text(encoding="utf-8").strip() if file else os.environ.get(KEY)
    advice = "a long random text, as `openssl rand -hex 32` prints"
    if key is None and not optional:
        raise CaiError(
            f"without an API key, everybody who reaches this machine could search: set {KEY} to {advice}, "
            "or give --proxy-authenticates if a proxy in front of this server checks who may search"
        )
    if key is not None and not re.fullmatch("[!-~]+", key):
        raise CaiError(f"{file or KEY} is empty or has other characters than printable ASCII; it should be {advice}")
    return key


if __name__ == "__main__":
    terminal.run(main)
