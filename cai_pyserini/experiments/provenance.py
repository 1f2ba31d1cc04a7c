"""How a run was made: a part of results.json, which also has the settings to repeat the run."""

import logging
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cai_pyserini.core import artifact
from cai_pyserini.core.config import names
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.identity import changes
from cai_pyserini.core.processes import processors
from cai_pyserini.core.settings import build
from cai_pyserini.core.source_code import PACKAGE
from cai_pyserini.core.steps import Step
from cai_pyserini.experiments.run_folder import RunFolder
from cai_pyserini.experiments.settings import RunSettings
from cai_pyserini.indexes import jvm
from cai_pyserini.models.device import device_name, resolve_device

RESULTS = "results.json"
OF_A_COMMAND = {"config", "dry_run", "output", "train", "verify"}  # settings that are not repeated
logger = logging.getLogger(__name__)


type Manifests = Mapping[Path, artifact.Manifest]  # of the outputs of steps


def provenance(run: RunFolder, manifests: Manifests) -> dict[str, Any]:
    """How a run was made. After an update, the settings are those of the earlier run."""
    settings = run.earlier.results.provenance.get("settings", {}) if run.earlier else run.settings
    with_code = {manifest.recipe["stage"] for manifest in manifests.values() if "code" in manifest.recipe}
    found = {path: manifest.stats["found"] for path, manifest in manifests.items() if manifest.stats.get("found")}
    return {
        "command": shlex.join([Path(sys.argv[0]).name.replace("__main__.py", "cai-pyserini"), *sys.argv[1:]]),
        "settings": settings,
        **_commit(),
        "changed_code": sorted(with_code),  # stages whose code is not that of the version
        "vectors_from_cache": {run.name_of(path): count for path, count in found.items()},  # or from an earlier version
        **({"device": device_name(resolve_device(run.experiment.device))} if "torch" in sys.modules else {}),  # if used
        "processor": _processor(),
        "processors": processors(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
    }


def encoding_precision(manifests: Manifests) -> str | None:
    """The precision the documents were encoded in; None if no step encodes documents."""
    recipes = (manifest.recipe for manifest in manifests.values() if manifest.recipe["stage"] == "encode")
    encoded = (recipe for recipe in recipes if recipe["settings"]["role"] == "documents")
    return next((recipe["inputs"]["encoder"]["precision"] for recipe in encoded), None)


def manifests_of(planned: Sequence[Step]) -> Manifests:
    found = {step.output: artifact.read_manifest(step.output) for step in planned}
    return {path: manifest for path, manifest in found.items() if manifest}


def versions() -> dict[str, str]:
    """The versions of all that computes; of Java and Lucene only if this process has used them."""
    return {"python": platform.python_version()} | artifact.versions() | jvm.versions()


def recorded(settings: RunSettings) -> dict[str, Any]:
    """The settings of a run, as JSON, with absolute paths."""
    located = {
        "encoder": [_located(name, names("encoders")) for name in settings.encoder],
        "dense": _located(settings.dense, names("encoders")),
        "cross_encoder": _located(settings.cross_encoder),
        "generated": _located(settings.generated),
    }
    values = settings.model_dump(mode="json", exclude=OF_A_COMMAND) | located
    values["collections"] = [_located(collection, names("index_configs")) for collection in settings.collections]
    return {name: value for name, value in values.items() if value is not None}


def _located(value: str | None, names: Sequence[str] = ()) -> str | None:
    """A path as an absolute one; any other value, such as a name, is unchanged."""
    return str(Path(value).resolve()) if value and value not in names and Path(value).exists() else value


def repeated(settings: RunSettings) -> tuple[RunSettings, dict[str, Any]]:
    """The settings of a run, with the precision that `auto` was, and changes of its collection's config, if `settings`
    name its results.json instead of a collection; flags that were given override them. Raises CaiError for results
    that do not have them."""
    first, *others = settings.collections
    if Path(first).name != RESULTS:
        return settings, {}
    if others:
        raise CaiError(f"{first} repeats one run: name nothing else")
    results = RunFolder(Path(first).parent).results
    if not (own := results.provenance.get("settings")):
        raise CaiError(f"{first} does not have the settings of its command, perhaps of an earlier version: name them")
    now = versions()
    before = {name: version for name, version in results.versions.items() if name in now}
    if different := changes(before, {name: now[name] for name in before}):
        logger.warning("%s is of other versions: %s", first, different)
    given = settings.model_dump(include=settings.model_fields_set - {"collections", "config"})
    again = build(RunSettings, own | {"precision": results.settings["precision"]} | given, first)
    for place in (*again.collections, *again.encoder, again.dense, again.cross_encoder, again.generated):
        if place and Path(place).is_absolute() and not Path(place).exists():
            raise CaiError(f"{first} was made from {place}, which is not there any more: put it back")
    metadata = results.settings["collection"].get("metadata")
    return again, {"metadata": metadata} if metadata else {}


def _commit() -> dict[str, Any]:
    """The commit of the clone that runs, and whether its files are those of the commit; nothing outside a clone, and
    where git refuses to say, for example because the clone is another user's."""
    git, clone = shutil.which("git"), PACKAGE.parent
    if not git or not (clone / ".git").exists():
        return {}
    command = [git, "-C", str(clone), "status", "--porcelain=v2", "--branch"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
    commit = re.search("^# branch.oid ([0-9a-f]+)$", done.stdout, re.MULTILINE)
    is_clean = not re.search("^[^#]", done.stdout, re.MULTILINE)
    return {"commit": commit[1], "clean": is_clean} if commit and not done.returncode else {}


def _processor() -> str:
    """The model of the processor."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text(encoding="utf-8").splitlines() if information.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())
