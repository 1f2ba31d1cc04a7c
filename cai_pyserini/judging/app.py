"""The judging page: HTML forms, which need no script."""

from functools import cache
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, FastAPI, HTTPException, Response
from fastapi import Query as Parameter
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import AfterValidator, StringConstraints

from cai_pyserini.core.template import template
from cai_pyserini.engine.reasons import best_passage, mark
from cai_pyserini.indexes.analyzer import CachedAnalyzer
from cai_pyserini.judging.judgments import MODEL, Grades, Judgments
from cai_pyserini.judging.pool import Pool, next_query, shuffled
from cai_pyserini.service.document_page import MAX_PARTS, PART
from cai_pyserini.service.guard import CHECK_PARAMETERS, EVERYBODY, HEADERS, Access, Guard
from cai_pyserini.service.page import HERE as SERVICE
from cai_pyserini.service.page import STYLE, shown_metadata

HERE = Path(__file__).parent
TEMPLATE = template(HERE / "judging.html.jinja", SERVICE)
TEXT_TEMPLATE = template(HERE / "judging_text.html.jinja", SERVICE)
PAGE_STYLE = STYLE + (HERE / "judging.css").read_text(encoding="utf-8")
KEYS = (HERE / "judging.js").read_text(encoding="utf-8")
PAGE_HEADERS = HEADERS | {
    "Referrer-Policy": "same-origin",  # with no-referrer, forms would have the origin null, which Guard refuses
}
MAX_NAME_LENGTH = 40  # characters of a judge's name
SHOWN = 600  # characters of a text that is shown whole; of a longer one, the best passage is
FOLDED = 20_000  # characters of a text that is folded below its passage; a longer one has a page of its own


def _person(name: str) -> str:
    if name.startswith(MODEL):
        raise ValueError(f"names that begin with {MODEL!r} are those of models")
    return name


Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_NAME_LENGTH)]
Judge = Annotated[Name, AfterValidator(_person)]
Id = Annotated[str, StringConstraints(max_length=10_000)]


def create_app(pool: Pool, judgments: Judgments, shared: int, access: Access = EVERYBODY) -> Guard:
    """The application. `shared` is as in next_query."""
    rubric = judgments.rubric
    judgments.limit_to(pool.topics, pool.text)
    app = FastAPI(openapi_url=None, redirect_slashes=False)
    routes = APIRouter(dependencies=[CHECK_PARAMETERS])
    stems = cache(lambda: CachedAnalyzer(pool.language))  # starts Java for the first document

    @routes.get("/", response_class=HTMLResponse)
    async def page(judge: Judge | None = None, query: Id = "", document: Id = "") -> str:
        """A document to judge: by default the next one, of the given query or else of the next."""
        if judge is None:
            return _render("", {}, judges=judgments.judges(), longest=MAX_NAME_LENGTH)
        mine = judgments.of(judge)
        if not (query or (query := next_query(pool.documents, mine, judgments.counts(), shared) or "")):
            return _progress(judge, mine)
        ids, grades = _documents(query, document), mine.get(query, {})
        document = document or next((id for id in shuffled(judge, query, ids) if id not in grades), "")
        stored = pool.text(document) if document else None
        text = stored.contents.removeprefix(stored.title).strip() if stored else ""
        own = set(stems()(pool.topics[query])) if stored else set()
        return _render(
            judge,
            mine,
            query=query,
            topic=pool.topics[query],
            document=document,
            title=(stored and stored.title) or document,
            heading=mark(stored.title, own, set(), stems()) if stored else [],
            passage=mark(best_passage(text, pool.topics[query], stems()), own, set(), stems())
            if len(text) > SHOWN
            else [],
            text=stored and (mark(text, own, set(), stems()) if len(text) <= FOLDED else []),
            metadata=shown_metadata(stored.metadata) if stored else [],
            done={id: (_title(id), grade) for id, grade in grades.items() if id in ids},
            size=len(ids),
            texts="".join(judgments.texts(query, document)) if document else "",
            outdated=(query, document, judge) in judgments.outdated(judge),
        )

    @routes.get("/text", response_class=HTMLResponse)
    async def whole_text(
        judge: Judge, query: Id, document: Id, part: Annotated[int, Parameter(ge=1, le=MAX_PARTS)] = 1
    ) -> str:
        """The whole text of a document, in parts if it is long."""
        _documents(query, document)
        if (stored := pool.text(document)) is None:
            raise HTTPException(404, "the text of this document is not stored")
        own, analyze = set(stems()(pool.topics[query])), stems()
        text = stored.contents.removeprefix(stored.title).strip()
        return TEXT_TEMPLATE.render(
            judge=judge,
            query=query,
            document=document,
            title=mark(stored.title or document, own, set(), analyze),
            text=mark(text[(part - 1) * PART : part * PART], own, set(), analyze),
            language=pool.language,
            part=part,
            more=part * PART < len(text),
        )

    @routes.get("/progress", response_class=HTMLResponse)
    async def progress(judge: Judge) -> str:
        """The queries that any judge has started."""
        return _progress(judge, judgments.of(judge))

    @routes.post("/")
    async def judged(judge: Judge, query: Id, document: Id, action: str, texts: str = "") -> RedirectResponse:
        """Record a grade or a skip, or undo the judge's last judgment. `texts` is a digest of the texts on the judge's
        page, which can be out of date."""
        ids = _documents(query, document)
        if action == "undo":
            undone = judgments.undo(judge)
            if undone and undone[1] in pool.documents.get(undone[0], ()):
                query, document = undone
            return RedirectResponse(f"./?{urlencode({'judge': judge, 'query': query, 'document': document})}", 303)
        if action not in ("skip", *map(str, range(len(rubric)))):
            raise HTTPException(400, f"action: expected skip, undo, or a grade below {len(rubric)}")
        if texts and texts != "".join(judgments.texts(query, document)):
            raise HTTPException(409, "the text has changed since the page was opened: go back, and open it again")
        judgments.add(query, document, judge, None if action == "skip" else int(action))
        remaining = ids - judgments.of(judge)[query].keys()
        return RedirectResponse(f"./?{urlencode({'judge': judge} | ({'query': query} if remaining else {}))}", 303)

    @routes.get("/style.css")
    async def style() -> Response:
        return Response(PAGE_STYLE, media_type="text/css")

    @routes.get("/keys.js")
    async def keys() -> Response:
        return Response(KEYS, media_type="text/javascript")

    def _progress(judge: str, mine: Grades) -> str:
        counts = judgments.counts()
        started = ((id, ids) for id, ids in pool.documents.items() if id in mine or id in counts)
        rows = [(id, pool.topics[id], len(ids & mine.get(id, {}).keys()), counts[id], len(ids)) for id, ids in started]
        outdated = sum(id in pool.documents.get(query, ()) for query, id, _ in judgments.outdated())
        return _render(judge, mine, rows=rows, outdated=outdated)

    def _render(judge: str, mine: Grades, **shown: Any) -> str:
        finished = sum(ids <= mine.get(query, {}).keys() for query, ids in pool.documents.items())
        return TEMPLATE.render(
            judge=judge, rubric=rubric, language=pool.language, finished=finished, queries=len(pool.documents), **shown
        )

    def _documents(query: str, document: str) -> set[str]:
        ids = pool.documents.get(query, set())
        if not ids or (document and document not in ids):
            raise HTTPException(404, "this document is not in the pool, or this query is not judged here")
        return ids

    def _title(document: str) -> str:
        stored = pool.text(document)
        return (stored and stored.title) or document

    app.include_router(routes)
    return Guard(app, access, headers=PAGE_HEADERS)
