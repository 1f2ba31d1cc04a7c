"""Listen for HTTP: at which address, with which key, and until when."""

import os
import re
import signal
import sys
from socket import IPPROTO_TCP, TCP_NODELAY

import uvicorn
from starlette.types import ASGIApp

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.flags import API_KEY, Listening
from cai_pyserini.serve.guard import is_loopback

LONGEST_REQUEST = 1 << 19  # bytes without a body; three parameters of 10,000 characters, as %F0%9F%A7%AC, have 360,000


def api_key(settings: Listening) -> str | None:
    """The key in a file, or else in the environment. Raises CaiError for one that clients cannot send, and for none
    where others than this machine are served."""
    file = settings.key_file
    key = file.read_text(encoding="utf-8").strip() if file else os.environ.get(API_KEY)
    advice = "a long random text, as `openssl rand -hex 32` prints"
    if key is None and not (is_loopback(settings.host) or settings.proxy_authenticates):
        raise CaiError(
            f"without an API key, everybody who reaches this machine could use this: set {API_KEY} to {advice}, or "
            "give --proxy-authenticates if a proxy in front of this server checks who may"
        )
    if key is not None and not re.fullmatch("[!-~]+", key):
        place = file or API_KEY
        raise CaiError(f"{place} is empty or has other characters than printable ASCII; it should be {advice}")
    return key


def listen(app: ASGIApp, settings: Listening, what: str) -> None:
    """Serve an application until the process is told to end; `what` it serves is printed with the address."""
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
    print(f"serving {what} at http://{place}:{port}/", file=sys.stderr, flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # which uvicorn raises again when it has finished
    uvicorn.Server(config).run([socket])
