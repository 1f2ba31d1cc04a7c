"""What the stages make of the tiny collection, recorded with the versions of their code: outputs/outputs.json.

`python -m tests.core.stages` records the outputs of stages whose versions it raises. Vectors differ in their last
digits between processors; so that the outputs of later stages do not, they begin with recorded vectors.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from cai_pyserini.core import artifact
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.source_code import recorded
from cai_pyserini.models import device
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.vectors import encode
from cai_pyserini.vectors.cache import VARIABLE
from cai_pyserini.vectors.shards import Vectors
from tests.indexes.stock import everything

FOLDER = Path(__file__).with_name("outputs")
RECORD = "RECORD_OUTPUTS"  # the variable with which the test records
RECORDED = FOLDER / "outputs.json"
ONLY_BY_FAISS = "dense-index"  # what only Faiss reads, is compared by the run of its index
ENCODERS = {"vectors": "splade-tiny", "dense": "minilm"}
FLOAT = re.compile(r"(-?\d+\.\d+(?:e-?\d+)?)")
PARTS = 8  # of the numbers of an output, each with a sum that also depends on their order

Call = Callable[[str, Path], Path]
Codes = Mapping[str, str]  # stages of tests/experiments/test_stages.py -> the names of their code in stages.json


def make(folder: Path, call: Call, stages: Iterable[str]) -> dict[str, list[Any]]:
    """Make the outputs of stages in a folder that has the collection, and return what is recorded of each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "")
        patch.setattr(device, "_cpu_has", lambda *features: False)  # float32 everywhere
        found = {name: _content(call(name, folder)) for name in ENCODERS}
        for name in ENCODERS:
            if not (FOLDER / f"{name}.npz").exists():
                shutil.copy(folder / name / "00000.npz", FOLDER / f"{name}.npz")
            shutil.rmtree(folder / name)
        patch.setenv(VARIABLE, str(folder / "cache"))
        for name, encoder in ENCODERS.items():
            _fill_cache(FOLDER / f"{name}.npz", EncoderModel(load_encoder(encoder), precision="float32"))
        for name in ENCODERS:
            assert Vectors(call(name, folder)).manifest.stats["found"]
        later = {name: call(name, folder) for name in stages if name not in ENCODERS}
        return found | {name: _content(output) for name, output in later.items() if name != ONLY_BY_FAISS}


def _fill_cache(shard: Path, encoder: EncoderModel) -> None:
    cache = encode._open_cache(encoder, "documents")
    assert cache
    with np.load(shard) as arrays:
        if "vectors" in arrays:
            vectors = arrays["vectors"]
        else:
            vectors = csr_matrix(tuple(arrays[key] for key in ("data", "indices", "indptr")), arrays["shape"])
        cache.put([bytes(key) for key in arrays["keys"]], vectors, 1.0)


def _content(output: Path) -> list[Any]:
    """A digest of the words, and sums of the numbers in an output."""
    manifest = artifact.read_manifest(output)
    assert manifest
    if any(output.glob("segments_*")):
        return _summary(json.dumps(everything(output)))
    files = [output / name for name in manifest.files] if output.is_dir() else [output]
    return [part for file in files for part in _summary(_text(file))]


def _text(file: Path) -> str:
    if file.suffix != ".npz":
        return file.read_text(encoding="utf-8")
    with np.load(file) as arrays:
        kept = {name: array for name, array in arrays.items() if name not in ("stats", "made_from", "keys")}
        return json.dumps({name: array.tolist() for name, array in kept.items()})


def _summary(text: str) -> list[Any]:
    words = FLOAT.split(text)
    numbers = np.array(words[1::2], float)
    weighted = numbers * (1 + np.cos(np.arange(len(numbers))) / 2)
    sums = [float(f"{part.sum():.6g}") for part in np.array_split(weighted, PARTS)] if len(numbers) else []
    return [hashlib.sha256("#".join(words[::2]).encode()).hexdigest()[:16], *sums]


def differing(found: dict[str, list[Any]], codes: Codes) -> dict[str, str]:
    """The outputs that are not recorded for the version of their code, with what to do."""
    before, versions = json.loads(RECORDED.read_text(encoding="utf-8")), recorded()[0]
    problems = {}
    for name, stage in ((name, codes[name]) for name in found):
        version, *values = before.get(name, [0])
        near = 1e-3 if name in ENCODERS else 1e-4
        expected = [value if isinstance(value, str) else pytest.approx(value, rel=near, abs=near) for value in values]
        if version != versions[stage].version:
            problems[name] = f"record the outputs of {stage} with `python -m tests.core.stages`"
        elif found[name] != expected:
            problems[name] = f"raise the version of {stage} with `python -m tests.core.stages {stage!r}`"
    return problems


def record(found: dict[str, list[Any]], codes: Codes) -> None:
    """Record the outputs of stages whose versions are other ones than those recorded."""
    before = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {}
    versions = {name: recorded()[0][codes[name]].version for name in found}
    rows = {name: before.get(name, [0]) for name in codes if name in found}
    rows |= {name: [version, *found[name]] for name, version in versions.items() if rows[name][0] != version}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    RECORDED.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
