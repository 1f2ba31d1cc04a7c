"""The service and the judging page behind nginx, which strips or keeps the path and sends its own host or ours."""

import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from html import unescape
from pathlib import Path
from urllib.parse import urljoin

import httpx2
import pytest

from cai_pyserini.cli.judge import RUBRIC
from cai_pyserini.indexes.searcher import Stored
from cai_pyserini.judging.app import create_app
from cai_pyserini.judging.judgments import Judgments
from cai_pyserini.judging.pool import Pool
from cai_pyserini.service.guard import Access
from tests.service.conftest import listening, served, wait_until

NGINX = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not NGINX, reason="no nginx is installed; on Debian or Ubuntu: apt-get install nginx-light"),
]
CONFIG = """
daemon off; pid {folder}/pid; error_log {folder}/error.log;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        {locations}
    }}
}}
"""
LOCATION = "location {path} {{ proxy_pass {address}{kept}; proxy_set_header Host {host}; }}"


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as found:
        return found.getsockname()[1]


@contextmanager
def nginx(folder: Path, port: int, *locations: str) -> Iterator[None]:
    (folder / "nginx.conf").write_text(CONFIG.format(folder=folder, port=port, locations="\n".join(locations)))
    assert NGINX
    with subprocess.Popen([NGINX, "-e", folder / "error.log", "-c", folder / "nginx.conf"]) as process:
        try:
            wait_until(lambda: not socket.socket().connect_ex(("127.0.0.1", port)))
            yield
        finally:
            process.terminate()


@pytest.mark.parametrize(("kept", "host"), [("", "$http_host"), ("/", "127.0.0.1")])
def test_the_service_below_a_path(run_folder: Path, tmp_path: Path, kept: str, host: str) -> None:
    """`kept` says what nginx does with the path: / strips it."""
    port = free_port()
    public = f"http://127.0.0.1:{port}/search/"
    with served(run_folder, "bm25", public_url=public) as address, httpx2.Client(follow_redirects=True) as client:
        location = LOCATION.format(path="/search/", address=address.rstrip("/"), kept=kept, host=host)
        with nginx(tmp_path, port, location):
            page = client.get(public, params={"q": "blader", "a": "bm25", "b": "", "filter": ""})
            assert page.url == f"{public}?q=blader&a=bm25"
            links = [
                urljoin(str(page.url), unescape(link))
                for link in re.findall('(?:href|src|action)="([^"]*)"', page.text)
            ]
            assert len(links) == 4 and all(link.startswith(public) for link in links)
            meant = client.get(links[-1])
            (document,) = re.findall('href="(document[^"]*)"', meant.text)
            assert "<h1" in client.get(urljoin(str(meant.url), unescape(document))).text
            for name, kind in (("style.css", "text/css"), ("script.js", "text/javascript")):
                assert client.get(f"{public}{name}").headers["content-type"].startswith(kind)
            slash = client.get(f"{public}v1/bm25/search/?query=bladder", follow_redirects=False)
            assert slash.status_code == 404 and "location" not in slash.headers
            asked = {"queries": [{"qid": "a", "text": "bladder"}]}
            own, other = ({"Origin": origin} for origin in (f"http://127.0.0.1:{port}", "https://example.org"))
            path = f"{public}v1/bm25/search"
            assert client.post(path, json=asked, headers=own).json()["results"][0]["candidates"]
            assert client.post(path, json=asked, headers=other).status_code == 403
            assert client.get(f"{public}openapi.json").json()["servers"] == [{"url": public}]


def test_judgments_are_saved(tmp_path: Path) -> None:
    """The fault: behind a proxy that sends `Host: 127.0.0.1`, as we advised, the page saves no judgment."""
    port, public_path = free_port(), "/judge/"
    origin = f"http://judge.example.org:{port}"
    judgments = Judgments(tmp_path / "judgments.sqlite", RUBRIC)
    pool = Pool({"q1": "zinc"}, {"q1": {"d1", "d2"}}, lambda id: Stored(id, id, id), "en")
    app = create_app(pool, judgments, 0, Access(local=True, public_url=origin + public_path))
    with listening(app) as address, httpx2.Client() as client:
        location = LOCATION.format(path=public_path, address=address.rstrip("/"), kept="/", host="127.0.0.1")
        with nginx(tmp_path, port, location):
            headers = {"Origin": origin, "Host": f"judge.example.org:{port}"}
            page = f"http://127.0.0.1:{port}{public_path}?judge=ana"
            for grade in "31":
                text = client.get(page, headers=headers).text
                (button,) = re.findall(f'formaction="([^"]*action={grade}&[^"]*)"', text)
                answer = client.post(urljoin(page, unescape(button)), headers=headers)
                assert answer.status_code == 303 and answer.headers["location"].startswith("./?judge=ana")
            assert sorted(judged.grade for judged in judgments.all()) == [1, 3]
            evil = client.post(urljoin(page, unescape(button)), headers=headers | {"Origin": "https://example.org"})
            assert evil.status_code == 403
            assert client.head(page, headers=headers).status_code == 200
