"""What adaptation gains and loses in nDCG@10, by collection and by rule of decision.

For each collection and seed, every candidate is scored twice: as the judges see it, without labels, and by the
collection's own queries; so is a larger weight of the trained SPLADE than that of adapt.adapt. So other weights and
other numbers of standard errors than that of adapt.choice are compared without training again. Scores are exact ones
of the impacts and vectors of all documents (adapt.served), not those of indexes. What is trained and measured stays in
--output.
"""

from collections.abc import Sequence
from itertools import groupby, product
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import harness
import numpy as np

from cai_pyserini.core import steps
from cai_pyserini.core.tables import markdown
from cai_pyserini.trainer.adapt import NEW_SHARES, Adaptation
from cai_pyserini.trainer.adaptation_data import AdaptationData
from cai_pyserini.trainer.choice import STANDARD_ERRORS, Candidate, decide, fusion_weights
from cai_pyserini.trainer.settings import AdaptSettings
from cai_pyserini.trainer.simulated import SimulatedRetrieval

LOSS = 0.003
LARGER = 0.8  # another weight of the trained SPLADE
NONE = Candidate(0.0, 0.0)
RULES = list(product((NEW_SHARES[2], LARGER), (1.0, 2.0, 3.0, 4.0)))  # the largest weight, and standard errors


class Larger(Adaptation):
    """An adaptation that also tries a larger weight."""

    @property
    def candidates(self) -> tuple[Sequence[float], Sequence[float]]:
        weights, shares = super().candidates
        return (*weights, LARGER), shares


class Asked(SimulatedRetrieval):
    """The queries of a collection, and all of its documents."""

    def __init__(self, data: AdaptationData):
        collection, split = data.full_collection, data.collection.split
        numbers = {record.id: number for number, record in enumerate(collection.records())}
        topics = collection.topics(split)
        qrels = collection.qrels(split).items()
        grades = {topics[id]: {numbers[d]: g for d, g in judged.items() if g > 0} for id, judged in qrels}
        self._judged = {text: judged for text, judged in grades.items() if judged}  # the grades of relevant documents
        queries, documents = list(self._judged), np.arange(len(data.contents))
        super().__init__(data, queries, documents, np.zeros(len(queries), np.int64))

    def ndcg(self, scores: np.ndarray) -> np.ndarray:
        """nDCG@10 (queries,)."""
        best = np.argpartition(-scores, 9, axis=1)[:, :10]
        best = np.take_along_axis(best, np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1), axis=1)
        discounts = 1 / np.log2(np.arange(2, 12))
        gains = []
        for of_query, judged in zip(best, self._judged.values(), strict=True):
            ideal = sorted(judged.values(), reverse=True)[:10] @ discounts[: len(judged)]
            gains.append([judged.get(int(number), 0) for number in of_query] @ discounts[: len(of_query)] / ideal)
        return np.array(gains)


class Measured(NamedTuple):
    """An adaptation: the values of candidates by judges (candidates, systems, judges), whose sources are `sources`,
    and by queries (candidates, systems, queries)."""

    name: str
    candidates: list[Candidate]
    systems: list[str]
    sources: np.ndarray
    judged: np.ndarray
    asked: np.ndarray

    @property
    def collection(self) -> str:
        return self.name.rpartition("-")[0]

    def decide(self, most: float = NEW_SHARES[2], errors: float = STANDARD_ERRORS) -> Candidate:
        """The choice with another largest weight and number of standard errors."""
        values = zip(self.candidates, self.judged, strict=True)
        tried = {each: judged for each, judged in values if each.splade <= most}
        with patch("cai_pyserini.trainer.choice.STANDARD_ERRORS", errors):
            return decide(tried, self.sources, self.systems).chosen

    def gains(self, chosen: Candidate) -> np.ndarray:
        """What the queries of the collection gain with a candidate, by system."""
        means = self.asked.mean(2)
        gains: np.ndarray = means[self.candidates.index(chosen)] - means[self.candidates.index(NONE)]
        return gains


def measure(collection: str, seed: int, folder: Path) -> Measured:
    """What the judges and the queries say about every candidate of an adaptation."""
    stem = Path(collection).stem
    name = f"{stem}-{seed}"
    file = folder / f"{name}.npz"
    if not file.exists():
        output, vectors = folder / name, folder / f"{stem}-vectors"
        adaptation = Larger(
            AdaptSettings(
                collection=collection, base="splade-tiny", dense="minilm", output=output, seed=seed, vectors=vectors
            )
        )
        steps.run(adaptation.steps()[:-1])
        data = adaptation.data
        judges = SimulatedRetrieval.for_pseudo_queries(data, data.held_out)
        weights, _ = fusion_weights(judges)
        judged, real = (adaptation.values(served, weights) for served in (judges, Asked(data)))
        np.savez(
            file,
            candidates=list(judged),
            systems=judges.systems,
            sources=judges.sources,
            judged=np.array(list(judged.values())),
            asked=np.array(list(real.values())),
        )
    with np.load(file) as stored:
        candidates = [Candidate(*each) for each in stored["candidates"].tolist()]
        return Measured(
            name, candidates, stored["systems"].tolist(), *(stored[k] for k in ("sources", "judged", "asked"))
        )


def decisions(measured: Sequence[Measured]) -> list[list[str]]:
    """For each collection, nDCG@10 before → after what is decided, means over seeds; the decision for each seed, as the
    weights of the trained SPLADE and of the projection; and what the largest change would gain instead."""
    rows = [["", "queries", *measured[0].systems, "decision by seed", "gains of the largest change"]]
    for name, group in groupby(measured, key=lambda each: each.collection):
        seeds = list(group)
        before = np.mean([each.asked[each.candidates.index(NONE)].mean(1) for each in seeds], axis=0)
        chosen = [each.decide() for each in seeds]
        after = before + np.mean([each.gains(of) for each, of in zip(seeds, chosen, strict=True)], axis=0)
        largest = np.mean([each.gains(max(each.candidates, key=sum)) for each in seeds], axis=0)
        rows.append(
            [
                name,
                f"{seeds[0].asked.shape[2]:,}",
                *(
                    f"{old:.4f} → {new:.4f}" if any(map(any, chosen)) else f"{old:.4f}"
                    for old, new in zip(before, after, strict=True)
                ),
                "; ".join(f"{of.splade:g}, {of.projection:g}" if any(of) else "none" for of in chosen),
                ", ".join(f"{gain:+.4f}" for gain in largest),
            ]
        )
    return rows


def rules(measured: Sequence[Measured]) -> list[list[str]]:
    """The mean gain, the largest loss, and how many are adapted, with other weights and numbers of standard errors."""
    rows = [["largest weight", "standard errors", "adapted", "mean gain", "largest loss"]]
    for rule in RULES:
        chosen = [each.decide(*rule) for each in measured]
        gains = np.array([each.gains(candidate) for each, candidate in zip(measured, chosen, strict=True)])
        adapted = f"{sum(candidate != NONE for candidate in chosen)} of {len(chosen)}"
        rows.append([*(f"{value:g}" for value in rule), adapted, f"{gains.mean():+.4f}", f"{gains.min():+.4f}"])
    return rows


def left_out(measured: Sequence[Measured]) -> list[list[str]]:
    """For each collection, the rule that the others choose, the one of the highest mean gain among those without a loss
    above LOSS, and what the collection gains with it."""
    rows = [["left out", "largest weight", "standard errors", "mean gain", "largest loss"]]
    gains = np.array([[each.gains(each.decide(*rule)) for each in measured] for rule in RULES])
    names = np.array([each.collection for each in measured])
    for name in dict.fromkeys(names.tolist()):
        mine = names == name
        of_others = gains[:, ~mine]
        safe = [number for number, of_rule in enumerate(of_others) if of_rule.min() >= -LOSS]
        best = max(safe, key=lambda number: of_others[number].mean())
        mean, lowest = (f"{value:+.4f}" for value in (gains[best, mine].mean(), gains[best, mine].min()))
        rows.append([name, *(f"{value:g}" for value in RULES[best]), mean, lowest])
    return rows


def main() -> None:
    arguments = harness.parser(__doc__, collection=False, repeats=None)
    arguments.add_argument("collections", nargs="+", help="names in index_configs/, YAML files, or BEIR folders")
    arguments.add_argument("--seeds", type=int, nargs="+", default=[42, 1, 2])
    arguments.add_argument("--output", type=Path, required=True, help="folder of trainings and values, which are kept")
    args = arguments.parse_args()
    measured = [measure(collection, seed, args.output) for collection, seed in product(args.collections, args.seeds)]
    tables = [decisions(measured), rules(measured), *[left_out(measured)] * (len(args.collections) > 1)]
    print(*map(markdown, tables), sep="\n\n")


if __name__ == "__main__":
    main()
