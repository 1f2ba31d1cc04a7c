"""The judging page: HTML forms, which need no script."""

from functools import cached_property
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import AfterValidator, StringConstraints

from cai_pyserini.core.config import tag_of
from cai_pyserini.core.template import template
from cai_pyserini.engine.reasons import Marks, best_passage, mark
from cai_pyserini.indexes.analyzer import Analyzer
from cai_pyserini.judging.judgments import MODEL, Grades, Judgments, NotSaved
from cai_pyserini.judging.pool import Pool, next_query, shuffled
from cai_pyserini.service.guard import CHECK_PARAMETERS, EVERYBODY, HEADERS, STATIC, Access, Guard
from cai_pyserini.service.page import HERE as SERVICE
from cai_pyserini.service.page import STYLE, shown_metadata

HERE = Path(__file__).parent
TEMPLATE = template(HERE / "judging.html.jinja", SERVICE)
PAGE_STYLE = STYLE + (HERE / "judging.css").read_text(encoding="utf-8")
KEYS = (HERE / "judging.js").read_text(encoding="utf-8")
PAGE_HEADERS = HEADERS | {
    "Referrer-Policy": "same-origin",  # with no-referrer, forms would have the origin null, which Guard refuses
}
MAX_NAME_LENGTH = 40  # characters of a judge's name
SHOWN = 600  # characters of a text that is shown whole; of a longer one, the best passage is
FOLDED = 100_000  # characters of a text that are folded below its passage


def _person(name: str) -> str:
    if name.startswith(MODEL):
        raise ValueError(f"names that begin with {MODEL!r} are those of models")
    return name


Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_NAME_LENGTH)]
Judge = Annotated[Name, AfterValidator(_person)]
Id = Annotated[str, StringConstraints(max_length=10_000)]
routes = APIRouter(dependencies=[CHECK_PARAMETERS])


class Judging:
    """What is judged, and the pages to do it on. `shared` is as in next_query."""

    def __init__(self, pool: Pool, judgments: Judgments, shared: int):
        self.pool, self.judgments, self.shared = pool, judgments, shared

    @cached_property
    def stems(self) -> Analyzer:  # starts Java for the first document
        return Analyzer(self.pool.language)

    def mark(self, text: str, query: str) -> Marks:
        """A text with the words of a query marked."""
        stems = self.stems.likely(topic := self.pool.topics[query])
        return mark(text, set(stems(topic)), set(), stems)

    def documents(self, query: str, document: str) -> set[str]:
        """The documents to judge for a query. Raises HTTPException if `document` is none of them."""
        ids = self.pool.documents.get(query, set())
        if not ids or (document and document not in ids):
            raise HTTPException(404, "this document is not in the pool, or this query is not judged here")
        return ids

    def title(self, document: str) -> str:
        stored = self.pool.text(document)
        return (stored and stored.title) or document

    def document_page(self, judge: str, mine: Grades, query: str, document: str, alert: str = "") -> str:
        """The page of a document, by default of the next one of the query, to judge it; `alert` says what failed."""
        pool, ids, grades = self.pool, self.documents(query, document), mine.get(query, {})
        document = document or next((id for id in shuffled(judge, query, ids) if id not in grades), "")
        stored = pool.text(document) if document else None
        text = stored.contents.removeprefix(stored.title).strip() if stored else ""
        is_long = len(text) > SHOWN
        topic = pool.topics[query]
        return self.render(
            judge,
            mine,
            query=query,
            topic=topic,
            document=document,
            alert=alert,
            title=(stored and stored.title) or document,
            heading=self.mark(stored.title, query) if stored else [],
            passage=self.mark(best_passage(text, topic, self.stems.likely(topic)), query) if is_long else [],
            text=stored and self.mark(text[:FOLDED], query),
            is_cut=len(text) > FOLDED,
            metadata=shown_metadata(stored.metadata, {}) if stored else [],
            done={id: (self.title(id), grade) for id, grade in grades.items() if id in ids},
            size=len(ids),
            texts="".join(self.judgments.texts(query, document)) if document else "",
            outdated=(query, document, judge) in self.judgments.outdated(judge),
        )

    def progress_page(self, judge: str, mine: Grades) -> str:
        """The queries that the judge has started."""
        documents = self.pool.documents
        rows = [
            (id, self.pool.topics[id], len(ids & mine[id].keys()), len(ids))
            for id, ids in documents.items()
            if id in mine
        ]
        outdated = sum(id in documents.get(query, ()) for query, id, _ in self.judgments.outdated())
        return self.render(judge, mine, rows=rows, outdated=outdated)

    def render(self, judge: str, mine: Grades, **shown: Any) -> str:
        documents = self.pool.documents
        return TEMPLATE.render(
            judge=judge,
            rubric=self.judgments.rubric,
            language=tag_of(self.pool.language),
            finished=sum(ids <= mine.get(query, {}).keys() for query, ids in documents.items()),
            queries=len(documents),
            **shown,
        )


async def _judging(request: Request) -> Judging:
    judging: Judging = request.app.state.judging
    return judging


JudgingOfApp = Annotated[Judging, Depends(_judging)]


@routes.get("/", response_class=HTMLResponse)
async def page(judging: JudgingOfApp, judge: Judge | None = None, query: Id = "", document: Id = "") -> str:
    """A document to judge: by default the next one, of the given query or else of the next."""
    judgments = judging.judgments
    if judge is None:
        return judging.render("", {}, judges=judgments.judges(), longest=MAX_NAME_LENGTH)
    mine = judgments.of(judge)
    query = query or next_query(judging.pool.documents, mine, judgments.counts(), judging.shared) or ""
    return judging.document_page(judge, mine, query, document) if query else judging.progress_page(judge, mine)


@routes.get("/progress", response_class=HTMLResponse)
async def progress(judging: JudgingOfApp, judge: Judge) -> str:
    """The queries that the judge has started."""
    return judging.progress_page(judge, judging.judgments.of(judge))


@routes.post("/", response_model=None)
async def judged(
    judging: JudgingOfApp, judge: Judge, query: Id, document: Id, action: str, texts: str = ""
) -> Response:
    """Record a grade or a skip, or undo the judge's last judgment. `texts` is a digest of the texts on the judge's
    page, which can be out of date."""
    judgments, ids = judging.judgments, judging.documents(query, document)
    if action not in ("undo", "skip", *map(str, range(len(judgments.rubric)))):
        raise HTTPException(400, f"action: expected skip, undo, or a grade below {len(judgments.rubric)}")
    if action != "undo" and texts and texts != "".join(judgments.texts(query, document)):
        raise HTTPException(409, "the text has changed since the page was opened: go back, and open it again")
    try:
        if action == "undo":
            undone = judgments.undo(judge)
            if undone and undone[1] in judging.pool.documents.get(undone[0], ()):
                query, document = undone
            return _redirect(judge=judge, query=query, document=document)
        judgments.add(query, document, judge, None if action == "skip" else int(action))
    except NotSaved as error:
        return HTMLResponse(judging.document_page(judge, judgments.of(judge), query, document, str(error)), 507)
    if ids - judgments.of(judge)[query].keys():
        return _redirect(judge=judge, query=query)
    return _redirect(judge=judge)


def _redirect(**parameters: str) -> RedirectResponse:
    return RedirectResponse(f"./?{urlencode(parameters)}", 303)


@routes.get("/style.css")
async def style() -> Response:
    return Response(PAGE_STYLE, headers=STATIC, media_type="text/css")


@routes.get("/keys.js")
async def keys() -> Response:
    return Response(KEYS, headers=STATIC, media_type="text/javascript")


def create_app(pool: Pool, judgments: Judgments, shared: int, access: Access = EVERYBODY) -> Guard:
    """The application. `shared` is as in next_query."""
    judgments.limit_to(pool.topics, pool.text)
    app = FastAPI(openapi_url=None, redirect_slashes=False)
    app.state.judging = Judging(pool, judgments, shared)
    app.include_router(routes)
    return Guard(app, access, headers=PAGE_HEADERS)
