"""The parameters of requests and the content of responses, which the OpenAPI document describes."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import Query as Parameter
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError
from starlette.exceptions import HTTPException

from cai_pyserini.core.metadata import Value
from cai_pyserini.engine.excerpts import Excerpt
from cai_pyserini.engine.explanation import Explanation
from cai_pyserini.engine.hits import Hit
from cai_pyserini.engine.quotes import Quote
from cai_pyserini.indexes.searcher import Stored
from cai_pyserini.service.page import FILTER, MAX_SHOWN_HITS, SORT, Name
from cai_pyserini.service.queue import BATCH, MAX_BUDGET, MAX_HITS, MAX_QUERY_LENGTH, MIN_BUDGET, Shown

NOT_BLANK = r"[^\s\x1c-\x1f]"  # as in str.strip, these four characters are white space, too
MAX_ID_LENGTH = 200  # characters of query ids and field names
MAX_FACETS = 20
MAX_RERANKED = 100
QueryText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_QUERY_LENGTH, pattern=NOT_BLANK)]
QUERY_PARAMETER = Parameter(description="the text to search for")
Text = Annotated[QueryText, QUERY_PARAMETER]
SNIPPETS = "return, for each document, the passage that contributes most to its score"
BUDGET = (
    "return excerpts instead, whole sentences to quote from, with so many tokens of 4 bytes of UTF-8 at most in all"
)
Counts = dict[str, dict[str, int]]  # field -> value -> documents

OMIT_NONE = Field(None, exclude_if=lambda value: value is None)
OMIT_EMPTY: Any = Field({}, exclude_if=lambda value: not value)


class Query(BaseModel):
    text: str


class Document(BaseModel):
    title: str
    contents: str
    metadata: dict[str, Value] = OMIT_EMPTY


class Candidate(BaseModel):
    docid: str
    score: float
    rank: int
    doc: Document | str | None  # or its best passage; str: one without a title, or with parse=false its JSON
    snippet: str | None = OMIT_NONE
    page: int | None = OMIT_NONE  # of the snippet; without one, where the passage begins
    passage: str | None = OMIT_NONE  # the id of the best passage, which is in the document's text
    start: int | None = OMIT_NONE  # from this character
    end: int | None = OMIT_NONE  # to this one


class DocumentForm(BaseModel):
    """How a response shows documents: as title, contents and metadata, as a string if they have only contents, or as
    their stored JSON."""

    parse: bool = Field(True, description="parse the stored JSON; false: return it as a string")
    max_doc_length: int | None = Field(
        None, description="characters of each document's contents to return; not with parse=false", ge=1
    )

    @field_validator("max_doc_length")
    @classmethod
    def _check(cls, length: int | None, info: ValidationInfo) -> int | None:
        if length and not info.data.get("parse", True):
            raise PydanticCustomError("parse", "not with parse=false, which returns the document as it is stored")
        return length

    def of(self, stored: Stored) -> Document | str:
        if not self.parse:
            return stored.raw
        if not (stored.title or stored.metadata):
            return stored.contents
        return Document(title=stored.title, contents=stored.contents, metadata=dict(stored.metadata))

    def candidates(self, ranking: Sequence[Shown]) -> list[Candidate]:
        return [
            Candidate(
                docid=hit.id,
                score=hit.score,
                rank=hit.rank,
                doc=stored and self.of(stored),
                snippet=snippet,
                page=page,
                **place_of(hit),
            )
            for hit, stored, snippet, page in ranking
        ]


def place_of(hit: Hit) -> dict[str, Any]:
    """The best passage of a hit, and its place in the document's text; empty without passages."""
    return {"passage": hit.passage, "start": hit.start, "end": hit.end} if hit.passage else {}


class SearchParameters(BaseModel):
    query: Annotated[QueryText | None, QUERY_PARAMETER] = None
    like: Name | None = Field(None, description="instead: a document or passage, whose text is the query")
    hits: int = Field(10, description="hits to return", ge=1, le=MAX_HITS)
    rerank: int = Field(0, description="documents to rerank, if there is time", ge=0, le=MAX_RERANKED)
    filter: Name = Field("", description=FILTER)
    sort: Name = Field("", description=SORT)
    facets: Name = Field("", description="fields whose values are counted, separated by commas")
    syntax: bool = Field(False, description='operators: documents have "words in quotes" exactly so, and not a -word')
    snippets: bool = Field(False, description=SNIPPETS)
    budget_tokens: int | None = Field(None, description=BUDGET, ge=MIN_BUDGET, le=MAX_BUDGET)

    def check(self) -> None:
        """Raise HTTPException for parameters that exclude each other."""
        check_snippets(self.hits, self.snippets)
        if self.budget_tokens and (self.like is not None or self.rerank or self.sort or self.snippets):
            raise HTTPException(400, "budget_tokens: not with like, rerank, sort or snippets")
        if self.like is None and self.query is None:
            raise HTTPException(400, "query: Field required")
        if self.like is not None and (self.query is not None or self.rerank or self.syntax):
            raise HTTPException(400, "like: not with query, rerank or syntax")
        if self.sort and self.rerank:
            raise HTTPException(400, "sort: not with rerank")


class Answer(BaseModel):
    api: Literal["v1"] = "v1"
    index: str


class SearchAnswer(Answer):
    query: Query
    candidates: list[Candidate]
    facets: Counts = OMIT_EMPTY
    excerpts: list[Excerpt] | None = OMIT_NONE  # with budget_tokens, instead of candidates
    degraded: str | None = OMIT_NONE  # why the answer is partial, such as "dense timed out"
    reranked: int | None = OMIT_NONE  # the number of reranked documents, which come first


class Topic(BaseModel):
    """One of several queries."""

    model_config = ConfigDict(strict=True, extra="forbid")

    qid: Annotated[str, StringConstraints(max_length=MAX_ID_LENGTH)]
    text: QueryText


class SearchRequest(BaseModel):
    """Several queries, with the same limits on characters and hits in total as a single one."""

    model_config = ConfigDict(strict=True, extra="forbid")

    queries: list[Topic] = Field(min_length=1, max_length=BATCH)
    hits: int = Field(10, description="hits to return for each query", ge=1, le=MAX_HITS)
    filter: str = Field("", description=FILTER, max_length=MAX_QUERY_LENGTH)
    sort: str = Field("", description=SORT, max_length=MAX_ID_LENGTH)
    facets: list[Annotated[str, StringConstraints(max_length=MAX_ID_LENGTH)]] = Field(
        [], description="fields whose values are counted", max_length=MAX_FACETS
    )
    snippets: bool = Field(False, description=SNIPPETS)

    def check_limits(self) -> None:
        """Raise HTTPException if the queries together exceed the limits, or two have the same id."""
        if (characters := sum(len(topic.text) for topic in self.queries)) > MAX_QUERY_LENGTH:
            raise HTTPException(400, f"queries: {characters} characters in all; {MAX_QUERY_LENGTH} are allowed")
        if (hits := self.hits * len(self.queries)) > MAX_HITS:
            raise HTTPException(400, f"hits: {hits} for all queries; {MAX_HITS} are allowed")
        check_snippets(hits, self.snippets)
        if len({topic.qid for topic in self.queries}) < len(self.queries):
            raise HTTPException(400, "queries: two have the same qid")


def check_snippets(hits: int, snippets: bool) -> None:
    """Raise HTTPException for too many snippets."""
    if snippets and hits > MAX_SHOWN_HITS:
        raise HTTPException(400, f"snippets: with {hits} hits; {MAX_SHOWN_HITS} are allowed")


class TopicAnswer(BaseModel):
    qid: str
    candidates: list[Candidate]
    facets: Counts = OMIT_EMPTY


class SearchAnswers(Answer):
    results: list[TopicAnswer]  # in the order of the queries
    degraded: str | None = OMIT_NONE  # as in SearchAnswer


class DocumentAnswer(Answer):
    docid: str
    doc: Document | str


class ExplainAnswer(Answer):
    query: Query
    explanation: Explanation


class QuoteAnswer(Answer):
    quote: Quote


class SuggestAnswer(Answer):
    query: Query
    suggestion: str | None  # None: every word is in a document, or nothing is similar


class Health(BaseModel):
    status: Literal["ok", "stuck"]
    version: str
    default: str  # the index that the page and assistants use by default
    indexes: list[str]
    unanswered: int


class Readiness(BaseModel):
    status: Literal["ok", "not ready"]
    indexes: dict[str, str]  # "ok" or the type of error


class Reloaded(BaseModel):
    status: Literal["ok"] = "ok"
    indexes: list[str]


class Wrong(BaseModel):
    """Why a request was refused or failed."""

    error: str
