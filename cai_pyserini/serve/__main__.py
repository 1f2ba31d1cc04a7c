from functools import partial

from cai_pyserini.core import terminal
from cai_pyserini.core.flags import DEVICE, OR_URL, Listening
from cai_pyserini.core.settings import Argv, PathOrUrl, flag, parse


class ServeSettings(Listening):
    """Serve indexes and systems of run folders over HTTP: a page to search with, and a REST API for programs.

    The page is at /. The routes /v1/INDEX/search and /v1/INDEX/doc/ID are those of Anserini's and Pyserini's REST API;
    /v1/INDEX/explain says why a document has its score. There are /health (liveness), /ready (readiness), /metrics
    (Prometheus) and /openapi.json, and POST /reload reopens the indexes. Only this machine is served unless --host says
    otherwise. With an API key in the environment variable CAI_PYSERINI_API_KEY, all routes but /health, /ready and
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
    queue: int = flag(256, "unanswered requests at most; further ones are refused with 429", ge=1)
    timeout: float = flag(30.0, "seconds after which a request times out with 503", gt=0)
    device: str = DEVICE


def main(argv: Argv = None) -> None:
    settings = parse(ServeSettings, argv, "python -m cai_pyserini.serve")

    from cai_pyserini.search.open import open_systems
    from cai_pyserini.serve.app import create_app
    from cai_pyserini.serve.guard import is_loopback
    from cai_pyserini.serve.listen import api_key, listen
    from cai_pyserini.serve.service import Service

    key = api_key(settings)

    open_all = partial(open_systems, settings.folders, settings.systems, settings.device)
    service = Service(open_all, settings.queue, settings.timeout)
    listen(create_app(service, key, is_loopback(settings.host)), settings, ", ".join(service.engines))


if __name__ == "__main__":
    terminal.run(main)
