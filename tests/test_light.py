"""The base installation: BM25 is indexed, and finished indexes are searched and served, without packages of extras."""

import configparser
import json
import subprocess
import sys
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
CODE = """
import sys, threading, socket, urllib.request
from pathlib import Path

absent = set(sys.argv[2].split(","))


class Base:
    "A finder of what is installed that misses what only extras install. Pyserini is found, but cannot be imported."

    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            return None
        spec = self.finder.find_spec(name, path, target)
        if spec and name == "pyserini":
            spec.loader = None
        return spec


sys.meta_path[:] = map(Base, sys.meta_path)

import cai_pyserini as cai

index = cai.index({"a": "short fingers", "b": "a large skull"}, system="bm25")
assert [hit.id for hit in index.search("skull")] == ["b"]
encode = cai.Encoder("splade-tiny").encode_query
for call, value in ((cai.index, ["a text"]), (index.rank, ["skull"]), (encode, "a")):
    try:
        call(value)
    except cai.CaiError as error:
        assert "[encode]" in str(error), error
    else:
        raise AssertionError("a package of an extra is not needed")

from cai_pyserini.engine.open import open_systems
from cai_pyserini.service.app import create_app
from cai_pyserini.service.guard import Access
from cai_pyserini.service.listen import Server
from cai_pyserini.service.queue import Service

service = Service(lambda: open_systems([Path(sys.argv[1])], ["joint-doc"]))
engine = service.engines["joint-doc"]
assert engine.explain("high blood pressure", "d10").score > 0
server = Server(create_app(service, Access(local=True)), seconds=10)
with socket.create_server(("127.0.0.1", 0)) as opened:
    thread = threading.Thread(target=server.run, args=([opened],))
    thread.start()
    try:
        address = "http://{}:{}/v1/joint-doc/search?query=high+blood+pressure".format(*opened.getsockname())
        print(urllib.request.urlopen(address, timeout=60).read().decode())
    finally:
        server.should_exit = True
        thread.join()
"""


def base_distributions() -> set[str]:
    """The names of the distributions that the base requires, directly or indirectly."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    left = [line for line in setup["options"]["install_requires"].splitlines() if line and not line.startswith("#")]
    found = {"cai-pyserini", "pyserini"}
    while left:
        requirement = Requirement(left.pop())
        if (name := canonicalize_name(requirement.name)) not in found:
            found.add(name)
            environments = [{"extra": extra} for extra in ("", *requirement.extras)]
            for other in distribution(name).requires or []:
                marker = Requirement(other).marker
                if marker is None or any(map(marker.evaluate, environments)):
                    left.append(other)
    return found


@pytest.mark.slow
def test_the_base_imports_nothing_of_the_extras(run_folder: Path, tmp_path: Path) -> None:
    """The fault: a module on the way to a search imports a package that only an extra installs, such as torch."""
    base = base_distributions()
    absent = {
        module for module, names in packages_distributions().items() if not base & {*map(canonicalize_name, names)}
    }
    assert {"torch", "transformers", "pandas", "pyarrow", "faiss", "matplotlib"} <= absent
    command = [sys.executable, "-c", CODE, str(run_folder), ",".join(absent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["candidates"][0]["docid"] == "d10"
