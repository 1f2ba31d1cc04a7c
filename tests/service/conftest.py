"""Servers with a queue and real indexes, in this process or in their own."""

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from cai_pyserini.cli.run import main as beir
from cai_pyserini.engine.open import open_systems
from cai_pyserini.engine.search import Engine
from cai_pyserini.service.app import create_app
from cai_pyserini.service.guard import Access, Guard
from cai_pyserini.service.listen import Server
from cai_pyserini.service.queue import Service

SYSTEMS = ["hybrid-splade-idf-minmax", "joint", "bm25"]  # best first


def engines(folder: Path, *systems: str) -> dict[str, Engine]:
    return open_systems([folder], systems or SYSTEMS[::-1])


@pytest.fixture(scope="package")
def opened(run_folder: Path) -> dict[str, Engine]:
    """Engines that no test closes."""
    return engines(run_folder)


@pytest.fixture(scope="package")
def client(run_folder: Path) -> Iterator[TestClient]:
    with TestClient(create_app(Service(lambda: engines(run_folder))), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="package")
def passages_run(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run on passages."""
    folder = tmp_path_factory.mktemp("passages")
    beir([str(tiny), "--output", str(folder), "--passages", "5", "--systems", "bm25"])
    return folder


def wait_until(condition: Callable[[], object]) -> None:
    until = time.monotonic() + 20
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)


@contextmanager
def served(source: Path | Service, *systems: str, **access: Any) -> Iterator[str]:
    """Serve a run folder or a service in a thread of this process, and yield the address."""
    service = source if isinstance(source, Service) else Service(lambda: open_systems([source], systems))
    with listening(create_app(service, Access(local=True, **access))) as address:
        yield address


@contextmanager
def listening(app: Guard, seconds: float = 10.0) -> Iterator[str]:
    """Serve an application in a thread of this process, and yield the address."""
    server = Server(app, seconds=seconds)
    with socket.create_server(("127.0.0.1", 0)) as opened:
        thread = threading.Thread(target=server.run, args=([opened],))
        thread.start()
        try:
            yield "http://{}:{}/".format(*opened.getsockname())
        finally:
            server.should_exit = True
            thread.join()


def serve(
    folder: Path, *arguments: str, **environment: str
) -> AbstractContextManager[tuple[subprocess.Popen[str], str]]:
    """Start a server process for systems of a run folder, and yield it with its address."""
    return started("serve", str(folder), "--systems", *arguments, **environment)


@contextmanager
def started(command: str, *arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a command that serves at any free port, and yield the process and its address."""
    words = [sys.executable, "-m", "cai_pyserini", command, *arguments, "--port", "0"]
    with (
        subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=os.environ | environment) as process,
        ExitStack() as at_end,
    ):
        at_end.callback(process.kill)
        assert process.stderr
        address = re.search(r"http://\S+", process.stderr.readline())
        assert address
        threading.Thread(target=process.stderr.read, daemon=True).start()  # a full pipe would block the server
        yield process, address[0]
