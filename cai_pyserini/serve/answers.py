"""The bodies of responses. Those to searches and for documents are Anserini's and Pyserini's."""

from typing import Literal

from pydantic import BaseModel

from cai_pyserini.search.explanation import Explanation


class Query(BaseModel):
    text: str


class Document(BaseModel):
    title: str
    contents: str


class Candidate(BaseModel):
    docid: str
    score: float
    rank: int
    doc: Document | str | None  # str: a document without a title, or with parse=false its JSON


class Answer(BaseModel):
    api: Literal["v1"] = "v1"
    index: str


class SearchAnswer(Answer):
    query: Query
    candidates: list[Candidate]


class DocumentAnswer(Answer):
    docid: str
    doc: Document | str


class ExplainAnswer(Answer):
    query: Query
    explanation: Explanation


class Health(BaseModel):
    status: Literal["ok", "stuck"]
    version: str
    indexes: list[str]
    unanswered: int


class Readiness(BaseModel):
    status: Literal["ok", "not ready"]
    indexes: dict[str, str]  # "ok", or the kind of error


class Reloaded(BaseModel):
    status: Literal["ok"] = "ok"
    indexes: list[str]


class Wrong(BaseModel):
    """Why a request was refused or failed."""

    error: str
