"""Continued equals from scratch: whatever changes between or during commands, a run folder says what a fresh one would
say, or refuses.

    python -m pytest tests/properties/test_continued.py --hypothesis-profile=long

tries thousands of changes; the suite tries the same six every time.
"""

import json
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from cai_pyserini.core import artifact
from cai_pyserini.core.config import IndexConfig, load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.files import remove
from cai_pyserini.engine.open import Run
from cai_pyserini.engine.search import Engine
from cai_pyserini.experiments.execute import execute
from cai_pyserini.experiments.experiment import Experiment
from cai_pyserini.experiments.names import parse_system
from cai_pyserini.experiments.ranking_artifacts import Evaluation, ranking_of
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.experiments.update import evaluate, update
from cai_pyserini.runs.trec import read_run, scores_by_query
from tests.conftest import damaged, json_lines
from tests.properties import conftest as conftest  # has the profiles

Lines = tuple[str, ...]
SPARSE = ("bm25", "splade-idf", "splade-auto", "joint", "hybrid-splade-idf-minmax")
DENSE = ("joint-near", "dense", "fused-splade-idf-dense-zscore")
DEPTH = 20
ASKED = ("bladder infection", "what lowers high blood pressure?")
GERMAN = "Kinder mit hohem Fieber und Husten sollten bald von einem Arzt untersucht werden. See your doctor."
NEW = {"title": "Bladder infection", "text": "Cranberries do not cure an infection.", "metadata": {"year": 2020}}


@dataclass(frozen=True)
class World:
    """All that a run depends on: files, line by line, and settings."""

    documents: Lines
    queries: Lines
    qrels: Lines
    checkpoint: str  # a version of the encoder's files
    encoder: tuple[tuple[str, Any], ...] = ()  # its settings
    collection: tuple[tuple[str, Any], ...] = ()  # those of the collection
    dense: bool = True
    raw: bool = True
    systems: tuple[str, ...] = ("bm25", "joint-near", "hybrid-splade-idf-minmax", "dense")

    @property
    def possible(self) -> tuple[str, ...]:
        """The systems that these settings allow."""
        return (*SPARSE, *DENSE) if self.dense else SPARSE


Change = Callable[[World], World]


def of_lines(kind: str, change: Callable[[Lines], Lines]) -> Change:
    return lambda world: replace(world, **{kind: change(getattr(world, kind))})


def of_settings(kind: str, **settings: Any) -> Change:
    return lambda world: replace(world, **{kind: tuple(sorted((dict(getattr(world, kind)) | settings).items()))})


def edited(line: str, **values: Any) -> str:
    return json.dumps(json.loads(line) | values)


def swapped(lines: Lines) -> Lines:
    """The lines with the texts of the first and the last exchanged."""
    first, last = json.loads(lines[0])["text"], json.loads(lines[-1])["text"]
    return edited(lines[0], text=last), *lines[1:-1], edited(lines[-1], text=first)


def graded(lines: Lines) -> Lines:
    """Judgments of which one has another grade."""
    query, document, _ = lines[-1].split("\t")
    return *lines[:-1], f"{query}\t{document}\t0"


def of_systems(world: World, names: tuple[str, ...]) -> World:
    return replace(world, systems=names)


FILES: dict[str, Change] = {  # what an update sees as well
    "queries in another order": of_lines("queries", lambda lines: lines[::-1]),
    "texts of queries exchanged": of_lines("queries", swapped),
    "a query edited": of_lines("queries", lambda lines: (edited(lines[0], text="fever and cough"), *lines[1:])),
    "a query added": of_lines("queries", lambda lines: (json.dumps({"_id": "q0", "text": "fever"}), *lines)),
    "documents in another order": of_lines("documents", lambda lines: lines[::-1]),
    "texts of documents exchanged": of_lines("documents", swapped),
    "a document edited": of_lines("documents", lambda lines: (*lines[:-1], edited(lines[-1], text="A cold colon."))),
    "a document in German": of_lines("documents", lambda lines: (*lines[:-1], edited(lines[-1], text=GERMAN))),
    "a document added": of_lines("documents", lambda lines: (*lines[:3], json.dumps({"_id": "new"} | NEW), *lines[3:])),
    "a document deleted": of_lines("documents", lambda lines: lines[1:]),
    "metadata edited": of_lines("documents", lambda lines: (edited(lines[0], metadata={"year": 7}), *lines[1:])),
    "qrels in another order": of_lines("qrels", lambda lines: (lines[0], *lines[:0:-1])),
    "a judgment edited": of_lines("qrels", graded),
}
SETTINGS: dict[str, Change] = {
    **{f"encoder {name} {value}": of_settings("encoder", **{name: value}) for name, value in {
        "bits": 4, "max_document_length": 8, "max_query_length": 4, "document_prompt": "passage: ",
        "query_prompt": "query: ", "idf_power": 0.5, "keep_terms": 9, "max_active_dims": 12, "query_scale": 10,
    }.items()},
    "two steps": of_settings("encoder", forward_index=True, keep_query_mass=0.4, rescore=2),
    "another checkpoint": lambda world: replace(world, checkpoint="other"),
    "k1": of_settings("collection", k1=2.0),
    "hits": of_settings("collection", hits=3),
    "fields": of_settings("collection", fields=["text"]),
    "passages": of_settings("collection", passages=6),
    "languages": of_settings("collection", language=["de", "en"]),
    "metadata": of_settings("collection", metadata={"year": "string"}),
    "no metadata": of_settings("collection", metadata={}),
    "without documents": lambda world: replace(world, raw=not world.raw),
    "with or without a dense encoder": lambda world: replace(world, dense=not world.dense),
    "only bm25": partial(of_systems, names=("bm25",)),
    "only splade-idf": partial(of_systems, names=("splade-idf",)),
    "dense and joint": partial(of_systems, names=("dense", "joint")),
    "fused": partial(of_systems, names=("fused-splade-idf-dense-zscore", "joint-near")),
}  # fmt: skip
COMMANDS = ("beir", "update", "update and evaluate", "beir, changed meanwhile", "update, changed meanwhile")


class Place:
    """A folder with a collection, an encoder, and runs."""

    def __init__(self, folder: Path, checkpoint: Path, tiny: Path):
        self.folder = folder
        self.corpus, self.run = folder / "corpus", folder / "runs" / "run"
        (self.corpus / "qrels").mkdir(parents=True)
        shutil.copytree(checkpoint, folder / "own")
        damaged(checkpoint, folder / "other", "cls.predictions.bias", 2000, 9.0)
        self.first = World(
            tuple(map(json.dumps, json_lines(tiny / "corpus.jsonl"))),
            tuple((tiny / "queries.jsonl").read_text(encoding="utf-8").splitlines()),
            tuple((tiny / "qrels" / "test.tsv").read_text(encoding="utf-8").splitlines()),
            "own",
            collection=(("metadata", {"year": "number"}),),
        )
        self._said: dict[str, dict[str, Any]] = {}  # by the world, as text

    def write(self, world: World) -> None:
        """Put the files of a world where runs find them."""
        names = {"corpus.jsonl": world.documents, "queries.jsonl": world.queries, "qrels/test.tsv": world.qrels}
        for name, lines in names.items():
            text = "".join(f"{line}\n" for line in lines)
            if not (path := self.corpus / name).exists() or path.read_text(encoding="utf-8") != text:
                path.write_text(text, encoding="utf-8")
        weights = self.folder / world.checkpoint / "model.safetensors"
        there = self.folder / "encoder"
        if not there.exists():
            shutil.copytree(self.folder / world.checkpoint, there)
        elif (there / "model.safetensors").read_bytes() != weights.read_bytes():
            shutil.copyfile(weights, there / "model.safetensors")

    def open(self, world: World, folder: Path) -> RunFolder:
        encoder = load_encoder(str(self.folder / "encoder")).replace(**dict(world.encoder))
        collection = IndexConfig(name="corpus", source=str(self.corpus), **dict(world.collection))
        dense = load_encoder("minilm") if world.dense else None
        settings: dict[str, Any] = {"raw": world.raw, "device": "cpu", "precision": "float32", "alpha": 1.0}
        return RunFolder(folder, Experiment(collection=collection, encoder=encoder, dense=dense, **settings))

    def execute(self, world: World, folder: Path) -> None:
        execute(self.open(world, folder), [parse_system(name) for name in world.systems])

    def from_scratch(self, world: World) -> dict[str, Any]:
        """What a fresh folder says of all systems."""
        every = replace(world, systems=world.possible)
        if (key := repr(every)) not in self._said:
            self.write(every)
            self.execute(every, folder := self.folder / "scratch")
            self._said[key] = said(folder, every.systems)
            assert self._said[key].keys() == {*every.systems}
            remove(folder)
        return self._said[key]

    def call(self, command: str, world: World) -> None:
        if command.startswith("beir"):
            self.execute(world, self.run)
            return
        list(update(self.run))
        if command == "update and evaluate":
            evaluate(self.run)

    def check(self, *worlds: World, answers: Collection[str] = ()) -> None:
        """Assert that the run says of each system what a fresh run of one of these worlds says, of all the same, or
        refuses; it refuses none of those that it is to answer for."""
        found = said(self.run, (*SPARSE, *DENSE))
        assert {*answers} <= found.keys()
        different = [self.different(found, world) for world in worlds]
        assert "" in different, different

    def different(self, found: dict[str, dict[str, Any]], world: World) -> str:
        """The first thing that a fresh run of a world says otherwise, or nothing."""
        expected = self.from_scratch(world)
        for name, of_system in found.items():
            if name not in expected:
                return f"{name} needs something else than these settings"
            for what, value in of_system.items():
                if value != expected[name][what] and not (
                    what == "hits" and without_texts(value, expected[name][what])
                ):
                    return f"{name}, {what}: {value}, from scratch {expected[name][what]}"
        return ""

    @cached_property
    def finished(self) -> Path:
        """A run of the first world, to be copied."""
        self.write(self.first)
        self.execute(self.first, self.folder / "finished")
        return self.folder / "finished"


def said(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What a run folder says of systems: hits, run, and values of measures. Those that it refuses are left out."""
    found, run, opened, engines = {}, RunFolder(folder), Run(folder, "cpu"), list[Engine]()
    for name in names:
        with suppress(CaiError):
            found[name] = said_of(run, opened, name, engines)
    for engine in engines:
        engine.close()
    return found


def said_of(run: RunFolder, opened: Run, name: str, engines: list[Engine]) -> dict[str, Any]:
    system, found = parse_system(name), dict[str, Any]()
    engines.append(engine := opened.open(name))
    found["hits"] = [hits_of(engine, text) for text in ASKED]
    if run.has(path := ranking_of(system, run).output):
        found["run"] = {query: [*hits.items()] for query, hits in scores_by_query(read_run(path)).items()}
    if run.has(path := Evaluation(system, run).output):
        found["values"] = json.loads(path.read_text(encoding="utf-8"))
    return found


def hits_of(engine: Engine, text: str) -> list[tuple[Any, ...]]:
    """Ids, scores, and what is stored of documents."""
    (hits,) = engine.search([text], DEPTH)
    stored = [engine.document(hit.id) for hit in hits]
    texts = [each and (each.title, each.contents, each.metadata) for each in stored]
    return [(hit.id, hit.score, text) for hit, text in zip(hits, texts, strict=True)]


def without_texts(found: list[list[tuple[Any, ...]]], expected: list[list[tuple[Any, ...]]]) -> bool:
    """Whether hits are the expected ones but for their texts, which no index has that is up to date."""
    texts = [hit[2] for hits in found for hit in hits]
    scores = [[[hit[:2] for hit in hits] for hits in each] for each in (found, expected)]
    return not any(texts) and scores[0] == scores[1]


@contextmanager
def after_steps(count: int, change: Callable[[], None]) -> Iterator[None]:
    """Make a change when so many artifacts have been asked for."""
    make, calls = artifact.make, iter(range(count))

    def counted(*arguments: Any, **others: Any) -> Path:
        if next(calls, None) is None:
            change()
        return make(*arguments, **others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(artifact, "make", counted)
        yield


@pytest.fixture(scope="module")
def place(checkpoint: Path, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("continued"), checkpoint, tiny)


changes = st.sampled_from(sorted(FILES | SETTINGS))
steps = st.tuples(changes, st.sampled_from(COMMANDS), st.integers(0, 12))


@pytest.mark.slow
@hypothesis.settings(
    max_examples=5_000,
    phases=[hypothesis.Phase.explicit]  # a case takes seconds
    + [hypothesis.Phase.reuse, hypothesis.Phase.generate] * (hypothesis.settings.get_current_profile_name() == "long"),
)
@hypothesis.example(
    cases=[("languages", "beir", 0), ("a document in German", "update", 0), ("queries in another order", "beir", 0)]
)
@hypothesis.example(cases=[("without documents", "beir", 0), ("a document added", "update", 0)])
@hypothesis.example(cases=[("a document deleted", "beir", 0), ("only bm25", "beir", 0)])
@hypothesis.given(cases=st.lists(steps, min_size=1, max_size=2))
def test_a_continued_run_says_what_a_fresh_one_says(place: Place, cases: list[tuple[str, str, int]]) -> None:
    """The faults: something that shapes a result is in no identity; an order is forgotten; a part that a later command
    made stale is searched, fused, evaluated; settings are guessed; files that change meanwhile are mixed."""
    world = place.first
    place.write(world)
    remove(place.run)
    shutil.copytree(place.finished, place.run)
    for name, command, count in cases:
        before, world = world, (FILES | SETTINGS)[name](world)
        world = replace(world, systems=tuple(each for each in world.systems if each in world.possible))
        hypothesis.note(f"{name}; {command} {count}")
        if name in SETTINGS:
            command = "beir"  # an update has the settings of its run
        answers = world.systems if command.startswith("beir") or "evaluate" in command else ()
        if command.endswith("meanwhile"):
            place.write(before)
            try:
                with after_steps(count, partial(place.write, world)):
                    place.call(command, world)
                place.check(before, world, answers=answers)  # what came last may have come too late
            except CaiError:
                place.check(before)
        place.write(world)
        place.call(command, world)
    place.check(world, answers=answers)
