"""The files of a run over a folder of files, served as the run has read them, and never as what runs scripts.

PDF and plain text are shown by the browser, everything else is downloaded.
"""

import codecs
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlencode

from anyio import CapacityLimiter, to_thread
from fastapi.responses import FileResponse, HTMLResponse, Response
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.staticfiles import NotModifiedResponse
from starlette.types import Receive, Scope, Send

from cai_pyserini.collections.file_listing import Changed, FileListing, Missing
from cai_pyserini.core.file_formats import FORMAT_OF
from cai_pyserini.core.metadata import Value
from cai_pyserini.core.template import template
from cai_pyserini.engine.search import Engine
from cai_pyserini.service.queue import Service
from cai_pyserini.service.readable import readable_path

PDF, TEXT, OTHER = "application/pdf", "text/plain", "application/octet-stream"
TYPES = (PDF, TEXT, OTHER)
SHOWN = {"pdf": PDF} | dict.fromkeys(("csv", "md", "rst", "txt"), TEXT)  # formats that a browser shows
POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)
SAMPLE = 1 << 16  # bytes from which the encoding of a text is taken
COMPARISONS = 2  # files whose contents are compared at the same time, which takes a second per half gigabyte
TEMPLATE = template(Path(__file__).parent / "file.html.jinja")


def open_link(
    engine: Engine, index: str, id: str, url: tuple[str, str] | None, metadata: Mapping[str, Value], page: int | None
) -> tuple[str, str] | None:
    """The address of the file of a document, its `url` if it has one, at a page of a PDF, and what following it does;
    None if there is none."""
    at_page = f"#page={page}" if page and metadata.get("type") == "pdf" else ""
    if url:
        return (url[0] + at_page, "Open the file") if "path" in metadata else None
    if not engine.files or not engine.files.has(id):
        return None
    verb = "Open" if metadata.get("type") in SHOWN else "Download"
    return f"file?{urlencode({'index': index, 'id': id})}{at_page}", f"{verb} the file"


async def render_file(service: Service, index: str, id: str, limiter: CapacityLimiter) -> Response:
    """The file of a document, or a page that says that it has changed. Raises HTTPException if there is none."""
    engine = service.engines.get(index)
    if engine is None or engine.files is None or not engine.files.has(id):
        raise HTTPException(404, f"{index} has no file of a document {id!r}")
    name = readable_path(id).rpartition("/")[2]
    try:
        return await to_thread.run_sync(_opened, engine.files, id, name, limiter=limiter)
    except (Missing, Changed) as error:
        has_changed = isinstance(error, Changed)
        text = TEMPLATE.render(name=name, index=index, id=id, has_changed=has_changed)
        return HTMLResponse(text, 409 if has_changed else 410)


def _opened(files: FileListing, id: str, name: str) -> "OpenFile":
    file, sha256 = files.open(id)
    try:
        return OpenFile(file, name, sha256)
    except BaseException:
        file.close()
        raise


class OpenFile(FileResponse):
    """The contents of an open file, which it closes, or a single range of them; or 304 if the client has them."""

    def __init__(self, file: BinaryIO, name: str, sha256: str):
        self._file = file
        media_type = SHOWN.get(FORMAT_OF.get(Path(name).suffix.lower(), ""), OTHER)
        headers = {
            "Content-Type": f"{TEXT}{_charset(file)}" if media_type == TEXT else media_type,
            "Content-Security-Policy": POLICY + "; sandbox" * (media_type != PDF),  # where its viewer may not run
            "ETag": f'"{sha256}"',
            "Cache-Control": "private, no-cache",
            "Cross-Origin-Resource-Policy": "same-origin",
        }
        super().__init__(
            f"/dev/fd/{file.fileno()}",  # this very file, whatever is at its path meanwhile
            headers=headers,
            media_type=media_type,
            filename=name,
            stat_result=os.fstat(file.fileno()),
            content_disposition_type="attachment" if media_type == OTHER else "inline",
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        with self._file:
            if _is_known(headers.get("if-none-match", ""), self.headers["etag"]):
                await NotModifiedResponse(self.headers)(scope, receive, send)
                return
            if not _is_range(headers.get("range", "")):  # a server may ignore it, and many cost more than the file
                scope = {**scope, "headers": [pair for pair in scope["headers"] if pair[0] != b"range"]}
            await super().__call__({**scope, "method": "HEAD" if scope.get("is_head") else "GET"}, receive, send)


def _charset(file: BinaryIO) -> str:
    """The parameter of text that is UTF-8, by its beginning; browsers guess other encodings."""
    sample = file.read(SAMPLE)
    file.seek(0)
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)
    except UnicodeDecodeError:
        return ""
    return "; charset=utf-8"


def _is_range(header: str) -> bool:
    """Whether a header asks for a single range, from one byte to another."""
    if (match := RANGE.fullmatch(header)) is None:
        return False
    first, last = match.groups()
    return int(first) <= int(last) if first and last else bool(first or last)


def _is_known(if_none_match: str, etag: str) -> bool:
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return etag in tags or "*" in tags
