import math
import sys
from functools import partial
from typing import Self

from pydantic import model_validator

from cai_pyserini.core.flags import DEVICE
from cai_pyserini.core.settings import AnyPath, Command, Main, flag
from cai_pyserini.service.settings import Listening


class Serve(Listening, Command):
    """Serve indexes and systems of run folders over HTTP: a page, a REST API for programs, and tools for assistants.

    The page is at /. The routes /v1/INDEX/search and /v1/INDEX/doc/ID are those of Anserini's and Pyserini's REST API;
    /v1/INDEX/explain says why a document has its score. There are /health (liveness), /ready (readiness), /metrics
    (Prometheus) and /openapi.json, and POST /reload reopens the indexes. Assistants use the tools of an MCP server at
    /mcp, or with --stdio on standard input and output. Only this machine is served unless --host says otherwise. If
    there is an API key, in the environment variable CAI_PYSERINI_API_KEY or in a file, all routes except /health,
    /ready and /openapi.json need it.
    """

    example = (
        "cai-pyserini serve runs/hpo/splade-tiny --systems bm25 joint\n"
        "  curl 'http://127.0.0.1:8000/v1/joint/search?query=short+fingers&hits=3'"
    )
    runs: list[AnyPath] = flag(
        help="run folders, or folders of indexes, or output folders of `cai-pyserini export milvus`", positional=True
    )
    systems: list[str] = flag(
        [],
        "the systems of run folders to serve (default: all that have indexes); by default, the page and assistants use "
        "the one that the run measured as best",
    )
    stdio: bool = flag(False, "no HTTP: speak MCP with the parent process, on standard input and output")
    queue: int = flag(256, "most unanswered requests; further ones are refused with 429", ge=1)
    timeout: float = flag(30.0, "seconds after which a request times out with 503", gt=0)
    deadline_ms: float | None = flag(
        None,
        "milliseconds after which a hybrid is answered without the parts whose encoders are late, and reranking stops",
        gt=0,
    )
    cross_encoder: str | None = flag(None, "reranker for searches with rerank=N: a folder or a Hugging Face model id")
    no_files: bool = flag(False, "do not serve the files of a run over a folder of files, only their texts")
    access_log: AnyPath | None = flag(None, "log requests to this file, a JSON object per line; logrotate may move it")
    access_log_queries: bool = flag(False, "log the queries, too, which are personal data")
    device: str = DEVICE

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.stdio and (
            http_flags := self.model_fields_set
            & {"host", "port", "public_url", "key_file", "proxy_authenticates", "no_files", "access_log"}
        ):
            raise ValueError(f"--stdio serves no other machine: leave out --{min(http_flags).replace('_', '-')}")
        return self

    def execute(self) -> None:
        import asyncio
        from contextlib import ExitStack, closing

        from cai_pyserini.engine.open import Reranker, open_systems
        from cai_pyserini.service.access_log import AccessLog
        from cai_pyserini.service.app import create_app
        from cai_pyserini.service.listen import access, listen
        from cai_pyserini.service.mcp import over_stdio, stdout_to_stderr
        from cai_pyserini.service.queue import Service

        open_all = partial(open_systems, self.runs, self.systems, self.device, files=not self.no_files)
        deadline = self.deadline_ms / 1000 if self.deadline_ms else math.inf
        rerank = Reranker(self.cross_encoder, self.device).scores if self.cross_encoder else None
        open_service = partial(
            Service, open_all, limit=self.queue, timeout=self.timeout, deadline=deadline, rerank=rerank
        )
        if self.stdio:
            with stdout_to_stderr():
                service = open_service()
            print(f"serving {', '.join(service.engines)} on standard input and output", file=sys.stderr, flush=True)
            asyncio.run(over_stdio(service))
            return
        allowed, log = access(self), None
        with ExitStack() as stack:
            if self.access_log:
                log = stack.enter_context(closing(AccessLog(self.access_log, self.access_log_queries)))
            service = open_service()
            listen(create_app(service, allowed, log), self, ", ".join(service.engines), self.timeout)


main = Main(Serve, "serve")
