"""Update a run after its collection has changed, and say how far it has moved."""

import json
import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import batched
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import numpy as np

from cai_pyserini.collections.contract import Collection
from cai_pyserini.collections.readers import other_languages
from cai_pyserini.core import artifact, files, steps
from cai_pyserini.core.config import joined_languages, languages_in
from cai_pyserini.core.errors import CaiError, without_secrets
from cai_pyserini.core.flags import API_KEY
from cai_pyserini.core.terminal import progress
from cai_pyserini.experiments import versions
from cai_pyserini.experiments.artifacts import Artifact, EncodedDocuments, Idf
from cai_pyserini.experiments.execute import execute
from cai_pyserini.experiments.plan import artifacts, plan
from cai_pyserini.experiments.report import table
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.experiments.systems import System
from cai_pyserini.models import idf
from cai_pyserini.vectors.shards import SHARD, Vectors, document_keys, text_keys

RELOAD_SECONDS = 600.0  # timeout for a service to reopen its indexes
SHOWN_TOKENS = 10
MIN_DOCUMENTS = 5  # rarer tokens are not shown, as their IDF moves by chance
DOUBLED = math.log(2)  # shift of IDF if the share of documents with a token doubles or halves
READAPT_SHARE = 0.2  # share of new documents above which adapting again is suggested
logger = logging.getLogger(__name__)


class Changes(NamedTuple):
    """How a collection differs from a run's, in documents. `new_passages` are those whose text the run lacks; None if
    documents have no passages."""

    before: int
    added: int
    changed: int
    deleted: int
    new_passages: int | None = None

    def __str__(self) -> str:
        counts = (
            f"added {self.added:,}, changed {self.changed:,}, deleted {self.deleted:,} of {self.before:,} documents"
        )
        return counts if self.new_passages is None else f"{counts}; {self.new_passages:,} new passages"


def update(folder: Path, keep: int = 1, dry_run: bool = False, **runtime: Any) -> Iterator[str]:
    """Build a new version of the run in `folder` from the current collection, and switch to it; yields lines to print.
    `runtime` are runtime settings of Experiment.

    Adapted encoders and chosen weights are kept. There are no scores, as the earlier ones are of another collection.
    Raises CaiError for a folder without a finished run, and for one that another process is writing.
    """
    with versions.updating(folder) as run:
        systems, vectors, experiment = run.systems, _document_vectors(run), run.experiment.replace(**runtime)
        current = RunFolder(folder, experiment, earlier=run)
        planned = plan(current, systems, evaluate=False)
        if all(reason is None for _, reason in steps.plan(planned)):
            yield f"{folder} is up to date"
            return
        changes = None
        if vectors:
            with suppress(CaiError):  # broken shards, which are made again
                changes = compare(vectors, current.collection)
        yield _changes_line(changes)
        if others := other_languages(experiment.collection):
            known = experiment.collection.language
            logger.warning(
                "documents are also in %s, but the run splits words as in %s: repeat `cai-pyserini run` "
                "with the setting language %s to change that",
                "+".join(others),
                known,
                joined_languages([*languages_in(known), *others]),
            )
        if dry_run:
            steps.print_plan(planned)
            return
        next_run = RunFolder(versions.begin(run), experiment, earlier=run)
        execute(next_run, systems, evaluate=False)
        report = drift(run, next_run, systems, changes)
        files.write_text(next_run.changes, files.json_text(report))
        _add_to_report(next_run)
        previous = versions.swap(folder)
        versions.prune(folder, keep)
        yield from [*lines(report)][1:]
        yield f"{folder} is updated; the earlier run is {previous}" if keep else f"{folder} is updated"


def evaluate(folder: Path, **runtime: Any) -> str:
    """Search for the queries of a run and evaluate, without changing its indexes; returns the table."""
    run = RunFolder(folder)
    results = execute(RunFolder(folder, run.experiment.replace(**runtime), earlier=run), run.systems)
    if run.changes.exists():
        _add_to_report(run)
    return table(results)


def _add_to_report(run: RunFolder) -> None:
    report, text = json.loads(run.changes.read_text(encoding="utf-8")), run.report.read_text(encoding="utf-8")
    files.write_text(run.report, "\n".join([text, "## Update", "", *(f"- {line}" for line in lines(report)), ""]))


def _changes_line(changes: Changes | None) -> str:
    return str(changes) if changes else "the collection has changed"


def _document_vectors(run: RunFolder) -> Vectors | None:
    """The vectors of a system's documents, which record the ids and keys of these; None if no system has any."""
    for documents in _of_kind(EncodedDocuments, run, run.systems):
        if run.has(documents.output):
            return documents.vectors()
    return None


def _of_kind[A: Artifact](kind: type[A], run: RunFolder, systems: Sequence[System]) -> list[A]:
    """The artifacts of a kind that systems need, those of adapted encoders last."""
    return [each for each in artifacts(run, systems, evaluate=False) if isinstance(each, kind)]


def drift(before: RunFolder, after: RunFolder, systems: Sequence[System], changes: Changes | None) -> dict[str, Any]:
    """The contents of update.json: shifts of documents, IDF, lengths and the balance of joint indexes since the earlier
    run, and the share of documents that the adaptation has not seen."""
    old, new = before.results, after.results
    report: dict[str, Any] = {"documents": changes and changes._asdict()}
    if idfs := _of_kind(Idf, after, systems):
        made, tokens = idfs[0].output, idfs[0].encoder.opened().tokenizer.terms
        report["idf"] = idf_drift(before.folder / made.name, made, tokens)
    report["nonzeros_per_document"] = [old.nonzeros_per_document, new.nonzeros_per_document]
    report["alpha"] = {index: [old.alpha[index], alpha] for index, alpha in new.alpha.items()}
    chosen = {line.partition(", because")[0] for line in old.decision}
    report["decision"] = [line for line in new.decision if line.partition(", because")[0] not in chosen]
    if any(system.adapted for system in systems) and (manifest := artifact.read_manifest(after.adapted)):
        new_share = _new_share(manifest.created, before, changes)
        report["adaptation"] = {"created": manifest.created, "new": new_share}
    return report


def compare(vectors: Vectors, collection: Collection) -> Changes:
    """Compare a collection with the documents behind vectors, by ids and text keys. Raises CaiError for broken
    vectors."""
    records = progress(collection.documents(), collection.size, "compare")
    current = (([r.id for r in part], text_keys([r.contents for r in part])) for part in batched(records, SHARD))
    (texts, keys), (new_texts, new_keys) = _table(document_keys(vectors), collection), _table(current, collection)
    (ids, sums), (new_ids, new_sums) = _by_document(texts, keys), _by_document(new_texts, new_keys)
    common, old, new = np.intersect1d(ids, new_ids, assume_unique=True, return_indices=True)
    changed = int((sums[old] != new_sums[new]).any(1).sum())
    is_new = np.isin(new_keys.view("S16"), keys.view("S16"), invert=True)
    passages = int(is_new.sum()) if len(texts) > len(ids) else None
    return Changes(len(ids), len(new_ids) - len(common), changed, len(ids) - len(common), passages)


def _table(parts: Iterable[tuple[Sequence[str], np.ndarray]], collection: Collection) -> tuple[np.ndarray, np.ndarray]:
    """Hashes of the documents' ids (texts,) and keys of texts (texts, 16), 24 bytes per document or passage."""
    hashed = [
        (np.fromiter((hash(collection.document_of(id)) for id in ids), np.int64, len(ids)), keys) for ids, keys in parts
    ]
    return np.concatenate([ids for ids, _ in hashed]), np.concatenate([keys for _, keys in hashed])


def _by_document(ids: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each document once, with the sum of the keys of its passages (documents, 2)."""
    documents, positions = np.unique(ids, return_inverse=True)
    sums = np.zeros((len(documents), 2), np.uint64)
    np.add.at(sums, positions, keys.view(np.uint64))
    return documents, sums


def idf_drift(before: Path, after: Path, tokens: Sequence[str]) -> dict[str, Any]:
    """The shift of IDF between two folders of the idf stage, for tokens that occur in both collections, and the mean
    number of distinct tokens per document in both."""
    old, new = idf.Idf.load(before), idf.Idf.load(after)
    in_both = (old.frequencies > 0) & (new.frequencies > 0)
    weights = old.weights(), new.weights()
    shift = np.where(in_both, np.abs(weights[1] - weights[0]), 0)
    shown = np.where(np.minimum(old.frequencies, new.frequencies) >= MIN_DOCUMENTS, shift, 0)
    most = [number for number in np.argsort(-shown, kind="stable")[:SHOWN_TOKENS] if shown[number]]
    return {
        "mean_difference": float(shift.sum() / max(in_both.sum(), 1)),
        "doubled_or_halved": float(new.frequencies[shift > DOUBLED].sum() / new.frequencies.sum()),
        "moved_most": {tokens[number]: [round(float(each[number]), 4) for each in weights] for number in most},
        "length": [float(each.frequencies.sum() / each.documents) for each in (old, new)],
    }


def idf_line(drift: Mapping[str, Any]) -> str:
    shifts = ", ".join(f"{token} {old:.2f} → {new:.2f}" for token, (old, new) in drift["moved_most"].items())
    most = f"; most: {shifts}" if shifts else ""
    old_length, new_length = drift["length"]
    return (
        f"since the earlier run, IDF has moved by {drift['mean_difference']:.4f} in the mean, by ln 2 or more for "
        f"{drift['doubled_or_halved']:.1%} of the tokens in documents{most}; documents have "
        f"{old_length:.1f} → {new_length:.1f} different tokens"
    )


def _new_share(adapted: str, before: RunFolder, changes: Changes | None) -> float | None:
    """An upper bound on the share of documents that are new or changed since an adaptation (some may have changed
    twice); None if unknown."""
    earlier = 0
    with suppress(FileNotFoundError):
        adaptation = json.loads(before.changes.read_text(encoding="utf-8")).get("adaptation", {})
        earlier = adaptation["new"] if adaptation.get("created") == adapted else 0
    if changes is None or earlier is None:
        return None
    return earlier + (changes.added + changes.changed) / (changes.before + changes.added - changes.deleted)


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of text for update.json."""
    yield _changes_line(report["documents"] and Changes(**report["documents"]))
    if "idf" in report:
        yield idf_line(report["idf"])
    if all(nonzeros := report["nonzeros_per_document"]):
        yield "non-zeros per document: {:.1f} → {:.1f}".format(*nonzeros)
    for index, (old, new) in report["alpha"].items():
        yield f"alpha of {index}: " + ", ".join(f"{old[kind]:.3g} → {new[kind]:.3g} ({kind} queries)" for kind in new)
    yield from report.get("decision", ())
    if adaptation := report.get("adaptation"):
        new, created = adaptation["new"], adaptation["created"][:10]
        share = "an unknown share" if new is None else f"{min(new, 1):.1%}"
        line = f"the encoder stays as adapted on {created}; new or changed since: {share} of the documents"
        if (new or 0) > READAPT_SHARE:
            line += f"; by the rule of thumb (above {READAPT_SHARE:.0%}), adapt it again: `cai-pyserini run --adapt`"
        yield line


def reload(url: str) -> str:
    """Have a service reopen its indexes; returns the line to print. Raises CaiError if the service does not."""
    key = os.environ.get(API_KEY)
    headers = {"X-API-Key": key} if key else {}
    try:  # without redirects and proxies: the key is for this service only
        answer = httpx2.post(f"{url.rstrip('/')}/reload", headers=headers, timeout=RELOAD_SECONDS, trust_env=False)
        if answer.is_success:
            return f"{url} has reopened {', '.join(answer.json()['indexes'])}"
        text = without_secrets(answer.headers.get("Location", answer.text))
        reason = f"HTTP {answer.status_code}: {' '.join(text.split())[:200]}"
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        reason = str(error) or type(error).__name__
    except (ValueError, LookupError, TypeError):
        reason = "no service of this package answers there"
    raise CaiError(f"{url} has not reopened the run, which is up to date: {reason}")
