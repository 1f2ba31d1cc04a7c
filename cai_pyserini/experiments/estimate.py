"""How long the steps of a run will take, about, and what would shorten them.

Encoding is estimated from the measured speed of the encoder (vectors.speed) and the tokens of some documents; other
steps, by their rates, from the size of the collection. Training and reranking are not estimated.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import NamedTuple

from cai_pyserini.collections.spans import CONTEXTS, SPANS_PER_TEXT
from cai_pyserini.core import artifact
from cai_pyserini.core.bars import columns, duration
from cai_pyserini.core.steps import Estimates, Step, total
from cai_pyserini.experiments.experiment import Experiment
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.experiments.sample import sampled
from cai_pyserini.experiments.systems import System
from cai_pyserini.indexes.words import LEXICON
from cai_pyserini.models.device import has_int8, resolve_device
from cai_pyserini.models.encoder import Encoder, Role
from cai_pyserini.vectors.encode import uncached
from cai_pyserini.vectors.shards import SHARD
from cai_pyserini.vectors.speed import FEW_TOKENS, count_tokens, encoding_seconds

ANNOUNCED_SECONDS = 60.0  # if all steps take less together, nothing is said
LISTED_SECONDS = 10.0  # steps that take less are not listed
LONG = 0.1  # share of all seconds
PAGE_COLUMNS = 100  # where no terminal limits them
CONTEXT_TOKENS, WORD_TOKENS = 16, 8  # with padding, of what vectors.word_vectors encodes
WORDS_PER_ROOT = 4.5  # words in two documents or more, per square root of a character
JUDGES = 600  # documents that `weights` makes pseudo queries of, at most a twentieth of all, see trainer.choice
QUERIES_PER_JUDGE = 2
QUERY_TOKENS = 16


class Rate(NamedTuple):
    """Seconds of a kind of step on two processors, from runs of hpo and scifact, and from the table of large
    collections in docs/how-to/large-collections.md."""

    start: float = 0.0
    per_thousand: float = 0.0  # documents
    per_million: float = 0.0  # characters


RATES = {  # by a word of a step's name
    "check": Rate(0.5, 0.05, 0.2),
    "idf": Rate(0.5, 0.05, 0.2),
    "words": Rate(1.0, 0.2, 0.7),
    "near": Rate(0.2, 0.3),
    "smooth": Rate(0.2, 0.1),
    "project": Rate(0.2, 0.02),
    "impacts": Rate(1.0, 0.1, 0.05),
    "index": Rate(2.0, 0.1, 0.1),
    "fuse": Rate(0.5),
    "evaluate": Rate(0.5),
}
EXPAND = Rate(2.0, 0.5)  # besides encoding, as for weights
WEIGHTS = Rate(5.0, 0.5)
SEARCH = Rate(0.001, 0.00001)  # per query
SEARCH_START = 2.0

REMEDIES = {  # first word of a step's name -> what shortens it
    "encode": "a smaller encoder, or fewer tokens per document (max_document_length)",
    "expand": "no dense encoder, or systems that need no neighbours (no -near, no trio)",
    "near": "no dense encoder, or systems that need no neighbours (no -near, no trio)",
    "smooth": "no dense encoder, or systems that need no neighbours (no -near, no trio)",
    "weights": "weights 2 1 2, without a choice",
    "search": "fewer systems",
    "index": "fewer systems",
    "impacts": "fewer systems",
    "rerank": "rerank_minutes, or a smaller depth",
    "adapt:": "no adaptation",
}


class Times:
    """Estimates of the seconds that steps of a run take."""

    def __init__(self, run: RunFolder):
        self._run = run

    def of(self, name: str) -> float | None:
        """The seconds of a step that has a rate, by its name; None for others."""
        rate = next((RATES[word] for word in re.split("[ -]", name) if word in RATES), None)
        return rate and self._at(rate)

    def _at(self, rate: Rate) -> float:
        sample = self._run.sample
        return rate.start + rate.per_thousand * sample.documents / 1e3 + rate.per_million * sample.characters() / 1e6

    def search(self) -> float:
        return SEARCH_START + len(self._run.topics) * self._at(SEARCH)

    def encode(self, system: System, role: Role, output: Path) -> float:
        """The seconds to encode queries, or the documents that neither an unfinished output nor the cache has."""
        plain = replace(system, weighting=None) if system.kind == "dense" else system  # the IDF may not exist yet
        encoder = self._run.encoder(plain)
        if role == "queries":
            queries = [*self._run.topics.values()]
            sample = sampled(queries)
            tokens = count_tokens(encoder, sample, role) * len(queries) / len(sample)
            return encoding_seconds(encoder, tokens, sample, role)
        per_document, documents, texts = self._tokens(encoder), self._run.sample.documents, self._run.sample.texts
        if per_document * documents < FEW_TOKENS:
            return encoding_seconds(encoder, per_document * documents, texts)
        if not artifact.read_manifest(output) and (shards := len(list(output.glob("*.npz")))):
            documents = max(documents - shards * SHARD, 0)
        else:
            documents *= len(uncached(encoder, role, texts)) / len(texts)
        return encoding_seconds(encoder, per_document * documents, texts)

    def expand(self, dense: System) -> float:
        sample = self._run.sample
        contexts = min(CONTEXTS, SPANS_PER_TEXT * sample.documents)
        words = min(LEXICON, WORDS_PER_ROOT * math.sqrt(sample.characters()))
        tokens = CONTEXT_TOKENS * contexts + WORD_TOKENS * words
        return self._at(EXPAND) + encoding_seconds(self._run.encoder(dense), tokens, sample.texts)

    def weights(self, *systems: System) -> float:
        sample, encoders = self._run.sample, map(self._run.encoder, systems)
        queries = QUERIES_PER_JUDGE * min(JUDGES, sample.documents / 20)
        seconds = (encoding_seconds(e, queries * (self._tokens(e) + QUERY_TOKENS), sample.texts) for e in encoders)
        return self._at(WEIGHTS) + sum(seconds)

    def _tokens(self, encoder: Encoder) -> float:
        """The tokens of a document."""
        texts = self._run.sample.texts
        return count_tokens(encoder, texts) / len(texts)


def estimate(steps: Sequence[Step]) -> Estimates:
    """The seconds of each step. Measures the speed of encoders that are not known on this machine."""
    return {step.output: step.estimate() for step in steps}


def describe(steps: Sequence[Step], estimates: Estimates, experiment: Experiment) -> Iterator[str]:
    """Yield lines that say how long steps will take, and what shortens it; none if all is done soon."""
    seconds = [estimates[step.output] for step in steps]
    known = sum(each or 0 for each in seconds)
    if known < ANNOUNCED_SECONDS and None not in seconds:
        return
    least = "" if total(seconds) is not None else "at least "
    yield f"{len(steps)} steps must run, {least}about {duration(known)} in all (estimated):"
    listed = [(step, each) for step, each in zip(steps, seconds, strict=True) if each is None or each >= LISTED_SECONDS]
    for step, each in listed:
        yield f"  {step.name:<40} {'unknown' if each is None else f'about {duration(each)}'}"
    if others := len(steps) - len(listed):
        rest = known - sum(each or 0 for _, each in listed)
        yield f"  {f'{others} others, each under {duration(LISTED_SECONDS)}':<40} about {duration(rest)}"
    long = [step for step, each in listed if each is None or each > LONG * known]
    remedies = {kind: REMEDIES[kind] for step in long if (kind := step.name.split()[0]) in REMEDIES}
    if "encode" in remedies and experiment.precision != "int8" and has_int8(resolve_device(experiment.device)):
        remedies["encode"] = f"precision int8, {remedies['encode']}"
    for kind, remedy in remedies.items():
        text = f"  {kind.removesuffix(':')} is shorter with: {remedy}"
        yield from wrap(text, columns() or PAGE_COLUMNS, subsequent_indent="    ")
