import os
import signal
import sys
from collections.abc import Sequence
from socket import IPPROTO_TCP, TCP_NODELAY
from typing import ClassVar

from cai_pyserini.core import terminal
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.flags import DEVICE, OR_URL
from cai_pyserini.core.settings import PathOrUrl, Settings, flag, parse

KEY = "CAI_PYSERINI_API_KEY"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")


class ServeSettings(Settings):
    """Serve indexes and systems of run folders over HTTP: a page to search with, and a REST API for programs.

    The page is at /. The routes /v1/INDEX/search and /v1/INDEX/doc/ID are those of Anserini's and Pyserini's REST API;
    /v1/INDEX/explain says why a document has its score. There are /health, /metrics (Prometheus) and /openapi.json, and
    POST /reload opens the indexes again. Only this machine is served unless --host says otherwise. With an API key in
    the environment variable CAI_PYSERINI_API_KEY, everything but /health needs it.
    """

    example: ClassVar[str] = (
        "python -m cai_pyserini.serve runs/hpo/splade-tiny --systems bm25 joint-splade-idf\n"
        "  curl 'http://127.0.0.1:8000/v1/joint-splade-idf/search?query=short+fingers&hits=3'"
    )
    folders: list[PathOrUrl] = flag(
        help=f"run folders, written by run_beir.sh, and indexes, each the folder of one, {OR_URL}", positional=True
    )
    systems: list[str] = flag([], "the systems of run folders to serve (default: all that have indexes)")
    host: str = flag("127.0.0.1", "address to listen on; 0.0.0.0 serves every machine that reaches this one")
    port: int = flag(8000, "port; 0: any that is free", ge=0, le=65535)
    queue: int = flag(256, "requests that may be unanswered; more are refused with 429", ge=1)
    timeout: float = flag(30.0, "seconds after which a request is given up with 503", gt=0)
    device: str = DEVICE


def main(argv: Sequence[str] | None = None) -> None:
    settings = parse(ServeSettings, argv, "python -m cai_pyserini.serve")

    import uvicorn

    from cai_pyserini.core.cache import index_here
    from cai_pyserini.engine.engine import Engine
    from cai_pyserini.engine.open import OpenRun, open_index
    from cai_pyserini.serve.app import create_app
    from cai_pyserini.serve.service import Service

    def open_engines() -> dict[str, Engine]:
        engines: dict[str, Engine] = {}
        for folder in map(index_here, settings.folders):
            if (folder / "results.json").is_file():
                run = OpenRun(folder, settings.device)
                opened = [run.open(name) for name in settings.systems or run.systems]
            else:
                opened = [open_index(folder, device=settings.device)]
            for engine in opened:
                if engine.name in engines:
                    raise CaiError(
                        f"{folder}: there are two {engine.name}; serve them on two ports, or rename an index"
                    )
                engines[engine.name] = engine
        return engines

    service = Service(open_engines, settings.queue, settings.timeout)
    app = create_app(service, os.environ.get(KEY), LOOPBACK if settings.host in LOOPBACK else ())
    config = uvicorn.Config(
        app, settings.host, settings.port, log_level="warning", use_colors=False, access_log=False, server_header=False
    )
    socket = config.bind_socket()
    socket.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)  # asyncio does so only for sockets of its own; saves 40 ms
    socket.listen()  # from now on, requests wait until the server has started
    host, port = socket.getsockname()[:2]
    print(f"serving {', '.join(service.engines)} at http://{host}:{port}/", file=sys.stderr, flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # which uvicorn raises again when it has finished
    uvicorn.Server(config).run([socket])


if __name__ == "__main__":
    terminal.run(main)
