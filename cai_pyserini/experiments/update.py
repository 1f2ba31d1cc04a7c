"""Update a run after its collection has changed."""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from cai_pyserini.core import artifact, files, steps
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.flags import API_KEY
from cai_pyserini.experiments import next_version
from cai_pyserini.experiments.artifacts import Artifact, EncodedDocuments, Idf, SpladeEncoder
from cai_pyserini.experiments.branches import SEED, DenseEncoder, Weights
from cai_pyserini.experiments.drift import READAPT_SHARE, Changes, compare, idf_drift, idf_line
from cai_pyserini.experiments.execute import execute
from cai_pyserini.experiments.plan import artifacts, plan
from cai_pyserini.experiments.report import table
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.experiments.systems import System
from cai_pyserini.vectors.shards import Vectors

RELOAD_SECONDS = 600.0  # timeout for a service to reopen its indexes


def update(folder: Path, keep: int = 1, dry_run: bool = False, **runtime: Any) -> Iterator[str]:
    """Build a new version of the run in `folder` from the current collection, and switch to it; yields lines to print.
    `runtime` are runtime settings of Experiment.

    Adapted encoders and chosen weights are kept. There are no scores, as the earlier ones are of another collection.
    Raises CaiError for a folder without a finished run, and for one that another process is writing.
    """
    with next_version.updating(folder) as run:
        systems, vectors, experiment = run.systems, _document_vectors(run), run.experiment.replace(**runtime)
        current = RunFolder(folder, experiment, earlier=run)
        planned = plan(current, systems, evaluate=False)
        if all(reason is None for _, reason in steps.plan(planned)):
            yield f"{folder} is up to date"
            return
        changes = None
        if vectors:
            with suppress(CaiError):  # vectors from an earlier release have no keys
                changes = compare(vectors, current.collection)
        yield _changes_line(changes)
        if dry_run:
            steps.print_plan(planned)
            return
        next_run = RunFolder(next_version.begin(run), experiment, earlier=run)
        execute(next_run, systems, evaluate=False)
        report = drift(run, next_run, systems, changes)
        files.write_text(next_run.changes, files.json_text(report))
        _add_to_report(next_run)
        previous = next_version.swap(folder)
        next_version.prune(folder, keep)
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
    run, and since the encoder was adapted."""
    old, new = before.results, after.results
    report: dict[str, Any] = {"documents": changes and changes._asdict()}
    idfs = _of_kind(Idf, after, systems)
    if idfs:
        idf = idfs[0]
        report["idf"] = idf_drift(before.folder / idf.output.name, idf.output, idf.encoder.opened().tokenizer.terms)
    report["nonzeros_per_document"] = [old.nonzeros_per_document, new.nonzeros_per_document]
    report["alpha"] = {index: [old.alpha[index], alpha] for index, alpha in new.alpha.items()}
    if any(system.adapted for system in systems) and (manifest := artifact.read_manifest(after.adapted)):
        new_share = _new_share(manifest.created, before, changes)
        report["adaptation"] = adaptation = dict[str, Any](created=manifest.created, new=new_share)
        if of_splade := [idf for idf in idfs if idf.encoder == SpladeEncoder(after, adapted=True)]:
            tokens = of_splade[0].encoder.opened().tokenizer.terms
            adaptation["idf"] = idf_drift(after.adapted / "idf", of_splade[0].output, tokens)
        if (new_share or 0) > READAPT_SHARE:
            with suppress(CaiError):  # the gains are optional
                adaptation["gains"] = _gains(after, systems, manifest.stats)
    return report


def _gains(run: RunFolder, systems: Sequence[System], stats: artifact.Stats) -> dict[str, list[float]]:
    """Gains of the adapted encoders on pseudo queries, by recommended system: when they were chosen, now, and the
    standard error now. Empty if no choice is on record, or the run lacks vectors of the unadapted encoders."""
    from cai_pyserini.trainer.adaptation_data import AdaptationData
    from cai_pyserini.trainer.choice import measure_gains  # imports torch, which takes seconds

    experiment, dense = run.experiment, [DenseEncoder] if run.experiment.dense else []
    plain, adapted = ([kind(run, is_adapted) for kind in (SpladeEncoder, *dense)] for is_adapted in (False, True))
    chosen = {"splade": stats.get("weight"), "projection": stats.get("projection")}
    then = next((row for row in stats.get("gains", []) if chosen.items() <= row.items()), None)
    available = {each.output for each in _of_kind(EncodedDocuments, run, systems)}
    if then is None or not {encoder.documents().output for encoder in plain} <= available:
        return {}
    splade, dense_config, *_ = [*(encoder.config() for encoder in plain), None]
    new_splade, new_dense, *_ = [*(encoder.opened() for encoder in adapted), None]
    weights = experiment.three_way_weights
    if not weights and artifact.read_manifest((chosen_weights := Weights(run)).output):
        weights = [*chosen_weights.values()]
    options = experiment.model_dump(include={"device", "precision", "alpha", "depth"}) | {"weights": weights}
    data = AdaptationData(experiment.collection, splade, dense_config, run.vectors, queries=0, seed=SEED, **options)
    gains = measure_gains(data, new_splade, new_dense)
    return {name: [then[name], *now] for name, now in gains.items() if name in then and math.isfinite(now[1])}


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
        yield idf_line(report["idf"], "the earlier run")
    if all(nonzeros := report["nonzeros_per_document"]):
        yield "non-zeros per document: {:.1f} → {:.1f}".format(*nonzeros)
    for index, (old, new) in report["alpha"].items():
        yield f"alpha of {index}: " + ", ".join(f"{old[kind]:.3g} → {new[kind]:.3g} ({kind} queries)" for kind in new)
    if adaptation := report.get("adaptation"):
        if "idf" in adaptation:
            yield idf_line(adaptation["idf"], "the adaptation")
        for name, (then, now, error) in adaptation.get("gains", {}).items():
            yield f"gain of the adaptation on pseudo queries, {name}: {then:+.4f} → {now:+.4f} ± {error:.4f} nDCG@10"
        new, created = adaptation["new"], adaptation["created"][:10]
        share = "an unknown share" if new is None else f"{min(new, 1):.1%}"
        line = f"the encoder stays as adapted on {created}; new or changed since: {share} of the documents"
        if (new or 0) > READAPT_SHARE:
            line += f"; by the rule of thumb (above {READAPT_SHARE:.0%}), adapt it again: `cai-pyserini run --adapt`"
        yield line


def reload(url: str) -> str:
    """Have a service reopen its indexes; returns the line to print. Raises CaiError if the service does not."""
    key = os.environ.get(API_KEY)

    class NoRedirects(HTTPRedirectHandler):
        def redirect_request(self, request: Request, *_: Any) -> None:
            """Follow no redirect: the key is for this service only, and GET does not reload."""

    try:
        request = Request(f"{url.rstrip('/')}/reload", method="POST", headers={"X-API-Key": key} if key else {})  # noqa: S310
        with build_opener(ProxyHandler({}), NoRedirects).open(request, timeout=RELOAD_SECONDS) as response:
            return f"{url} has reopened {', '.join(json.load(response)['indexes'])}"
    except HTTPError as error:
        target = error.headers.get("Location")
        reason = f"{error}: {f'it is at {target}' if target else error.read().decode(errors='replace')}"
    except (OSError, HTTPException) as error:
        reason = str(error) or type(error).__name__
    except (ValueError, LookupError, TypeError):
        reason = "no service of this package answers there"
    raise CaiError(f"{url} has not reopened the run, which is up to date: {reason}")
