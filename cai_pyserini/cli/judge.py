"""Make relevance judgments, and use them: qrels, agreement, and comparisons of two systems."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, field_validator, model_validator

from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.flags import MODEL_KEY, RUN_FOLDER, TOPICS_FILE
from cai_pyserini.core.settings import AnyPath, Command, Group, InputFile, Main, flag
from cai_pyserini.service.settings import Listening, web_address

if TYPE_CHECKING:
    from cai_pyserini.collections.contract import Qrels
    from cai_pyserini.experiments.run_folder import RunFolder

RUN = "cai-pyserini judge"
RUBRIC = ["not relevant", "on the topic", "answers in part", "answers fully"]
SYSTEMS = flag(help="the systems whose results are judged", min_length=1)
NEW_DATABASE = flag(help="SQLite file for the judgments, on a local disk; created if missing")
DEPTH: int = flag(10, "number of best documents of each system to judge", ge=1)
QUERIES: InputFile | None = flag(None, f"the queries to judge: {TOPICS_FILE} (default: the collection's)")
DATABASE = flag(help="the database of judgments, made by `judge serve` or `judge llm`", positional=True)


class Serve(Listening, Command):
    """Serve a page to judge the results of systems: blind, in random order, by any number of judges.

    A query's pool is the best documents of each system. The page works with the keyboard alone, and without JavaScript.
    Only this machine is served unless --host says otherwise. If there is an API key, in the environment variable
    CAI_PYSERINI_API_KEY, the page asks for it as a password.
    """

    example = f"{RUN} serve runs/hpo/splade-tiny --systems bm25 joint --database judgments.sqlite"
    config: AnyPath | None = flag(None, "YAML file with any of these settings, such as rubric; flags override it")
    run: AnyPath = RUN_FOLDER
    systems: list[str] = SYSTEMS
    database: AnyPath = NEW_DATABASE
    depth: int = DEPTH
    topics: InputFile | None = QUERIES
    shared: int = flag(5, "number of queries that every judge gets first, to measure agreement", ge=0)
    rubric: list[Annotated[str, Field(min_length=1)]] | None = flag(
        None,
        f"what each grade means, from 0 (default: as in the database; if new, {', '.join(map(repr, RUBRIC))})",
        min_length=2,
        max_length=10,
    )

    def execute(self) -> None:
        from cai_pyserini.judging.app import create_app
        from cai_pyserini.judging.judgments import Judgments
        from cai_pyserini.judging.pool import open_pool
        from cai_pyserini.service.listen import access, listen

        allowed = access(self)
        pool = open_pool(self.run, self.systems, self.depth, self.topics)
        judgments = Judgments(self.database, self.rubric or RUBRIC)
        if self.rubric not in (None, judgments.rubric):
            raise CaiError(
                f"the grades of {self.database} have another meaning ({', '.join(judgments.rubric)}): leave --rubric "
                "out, or choose another --database"
            )
        app = create_app(pool, judgments, self.shared, allowed)
        documents = sum(map(len, pool.documents.values()))
        content = f"{documents:,} documents of {len(pool.documents):,} queries to judge"
        if without_hits := len(pool.topics) - len(pool.documents):
            content += f"; {without_hits:,} queries have no hits"
        listen(app, self, content)


class Llm(Command):
    """Let a language model judge the results of systems, as one more judge in the database of `judge serve`.

    The server speaks OpenAI's chat/completions: Ollama, vLLM, or a provider, which gets the queries and documents. Its
    key is read from the environment variable CAI_PYSERINI_MODEL_KEY. Grades are saved as they arrive; the same command
    continues. Where people have judged too, it prints how well they agree, and export and compare use their grades.
    """

    example = f"{RUN} llm runs/hpo/splade-tiny --systems bm25 joint --database judgments.sqlite --model qwen3:8b"
    run: AnyPath = RUN_FOLDER
    systems: list[str] = SYSTEMS
    database: AnyPath = NEW_DATABASE
    depth: int = DEPTH
    topics: InputFile | None = QUERIES
    model: str = flag(help="the model, by the name that the server knows it by", min_length=1)
    url: str = flag("http://localhost:11434/v1", f"address of the server, which gets the key in {MODEL_KEY}")
    prompt: InputFile | None = flag(
        None, "file with another prompt, with the placeholders $query, $document and $marker (default: UMBRELA's scale)"
    )
    characters: int = flag(4000, "most characters of a document; of a longer one, the best passage is judged", ge=100)
    parallel: int = flag(4, "most requests at a time", ge=1, le=64)
    timeout: float = flag(120.0, "most seconds for an answer", gt=0)
    dry_run: bool = flag(False, "only print how much there is to judge")

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        return web_address(url)

    def execute(self) -> None:
        import asyncio
        import os

        from cai_pyserini.judging import model_judge
        from cai_pyserini.judging.judgments import MODEL, Judgments
        from cai_pyserini.judging.pool import open_pool
        from cai_pyserini.judging.verdict import agreement

        prompt = model_judge.read_prompt(self.prompt or model_judge.PROMPT)
        pool = open_pool(self.run, self.systems, self.depth, self.topics)
        judgments = Judgments(self.database, RUBRIC)
        if not self.prompt and judgments.rubric != RUBRIC:
            raise CaiError(
                f"the grades of {self.database} have another meaning ({', '.join(judgments.rubric)}) than those of the "
                f"prompt: copy {model_judge.PROMPT}, write them into it, and give it as --prompt"
            )
        judgments.limit_to(pool.topics, pool.text)
        judge = model_judge.judge_name(self.model, prompt, self.characters)
        asked = model_judge.questions(pool, judgments.of(judge), prompt, self.characters)
        documents = sum(map(len, pool.documents.values()))
        print(f"{judge}: {model_judge.estimate(asked)}; {documents - len(asked):,} are judged", flush=True)
        if self.dry_run:
            return
        chat = model_judge.Chat(self.url, self.model, os.environ.get(MODEL_KEY, "").strip(), self.timeout)

        def record(query: str, document: str, grade: int) -> None:
            judgments.add(query, document, judge, grade)

        failed = asyncio.run(model_judge.judge(asked, chat, len(judgments.rubric), self.parallel, record))
        print(f"{len(asked) - len(failed):,} judged")
        if failed:
            print(f"{len(failed):,} not judged; the same command asks for them again")
            for (query, document), reason in failed.items():
                print(f"  query {query}, document {document}: {reason}")
        judged = [row for row in judgments.all() if row.judge == judge or not row.judge.startswith(MODEL)]
        if any(row.judge != judge for row in judged):
            print(f"\n{agreement(judged)}")


class Judged(Command):
    """What uses the judgments of a run's results."""

    run: AnyPath = RUN_FOLDER
    topics: InputFile | None = flag(None, "the judged queries, as for `judge serve` (default: the collection's)")
    judges: list[str] = flag(
        [], "only the grades of these judges count, by their names in `judge agree` (default: all)"
    )

    @contextmanager
    def grades(self, database: Path) -> Iterator[tuple["RunFolder", "Qrels"]]:
        """The run and the merged grades; finally, says which grades do not count."""
        from cai_pyserini.experiments.run_folder import RunFolder
        from cai_pyserini.judging.judgments import Judgments, qrels_of
        from cai_pyserini.judging.pool import stored_texts, topics_of

        judgments, run = Judgments(database), RunFolder(self.run)
        judgments.limit_to(topics_of(run, self.topics), stored_texts(run, judgments.documents()))
        qrels = qrels_of(judgments.all(self.judges))
        warning = f"{left_out}; judge them again, or give --topics" if (left_out := judgments.left_out()) else ""
        if not qrels:
            raise CaiError(f"{database} has no grade: " + (warning or f"make some with `{RUN} serve`"))
        yield run, qrels
        if warning:
            print(warning)


class Export(Judged):
    """Write the judgments as qrels, except of queries and documents whose texts have changed since."""

    example = f"{RUN} export runs/hpo/splade-tiny judgments.sqlite --output path/to/folder/qrels/judged.tsv"
    database: AnyPath = DATABASE
    output: AnyPath = flag(help="output file: .txt or .qrels in TREC's format, .tsv in BEIR's")

    def execute(self) -> None:
        from cai_pyserini.judging.judgments import write_qrels

        with self.grades(self.database) as (_, qrels):
            write_qrels(qrels, self.output)
            print(f"{self.output}: {sum(map(len, qrels.values())):,} judgments of {len(qrels):,} queries")


class Agree(Command):
    """Show how well judges agree: Cohen's kappa of each pair."""

    example = f"{RUN} agree judgments.sqlite"
    database: AnyPath = DATABASE

    def execute(self) -> None:
        from cai_pyserini.judging.judgments import Judgments
        from cai_pyserini.judging.verdict import agreement

        print(agreement(Judgments(self.database).all()))


class Compare(Judged):
    """Compare two systems by judgments, and estimate how many more judged queries would decide between them."""

    example = f"{RUN} compare runs/hpo/splade-tiny bm25 joint judgments.sqlite"
    a: str = flag(help="a system", positional=True)
    b: str = flag(help="another system", positional=True)
    database: AnyPath = DATABASE
    smallest: float = flag(0.02, "the smallest difference in nDCG@10 that would matter", gt=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.a == self.b:
            raise ValueError(f"{self.a} is given twice")
        return self

    def execute(self) -> None:
        from cai_pyserini.judging.pool import run_of_system
        from cai_pyserini.judging.verdict import verdict

        with self.grades(self.database) as (run, qrels):
            runs = {name: run_of_system(run, name) for name in (self.a, self.b)}
            print(verdict(runs, qrels, self.smallest))


main = Main(
    Group(
        "Judge the results of systems, and use the judgments.",
        {"serve": Serve, "llm": Llm, "export": Export, "agree": Agree, "compare": Compare},
    ),
    "judge",
)
