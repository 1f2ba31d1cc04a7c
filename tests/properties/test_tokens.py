"""The first tokens of a long text are those of its beginning, and no more of it than that is tokenized."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import PreTokenizedString, Regex, normalizers, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer
from transformers import PreTrainedTokenizerFast

from cai_pyserini.models import tokenizer as module
from cai_pyserini.models.checkpoint import load_checkpoint
from cai_pyserini.models.tokenizer import CHARACTERS_PER_TOKEN, Tokenizer, Windows, text_batches
from tests.models.kinds import japanese
from tests.models.test_architectures import make_tokenizer


class Pairs:
    """A pre-tokenizer of two words at a time."""

    def pre_tokenize(self, text: PreTokenizedString) -> None:
        text.split(lambda _, part: part.split(Regex(r"\w+ \w+"), "isolated"))


SPLIT_AT_SPACES = ["splade-tiny", "minilm", "Roberta", "XLMRoberta", "Camembert", "DebertaV3", "ModernBert", "digits"]
OTHERS: dict[str, tuple[Any, Any]] = {  # normalizers and pre-tokenizers that do not split at every space
    "pattern": (None, pre_tokenizers.Split(Regex(r"\w+ \w+"), "isolated")),
    "whole": (None, pre_tokenizers.Metaspace(split=False)),
    "replaced": (normalizers.Replace(" ", "-"), pre_tokenizers.Whitespace()),
    "nothing": (None, None),
    "python": (None, PreTokenizer.custom(Pairs())),
}

words = st.text(st.sampled_from("aeinrst19.,-'▁éﬁ東Σ\u0301\u0600"), min_size=1, max_size=9)
odd = st.sampled_from(["[SEP]", "<mask>", "</s>", "heart attack", "x" * 150, "repeated infection", "ß", "😀"])
spaces = st.sampled_from([" ", " ", " ", "  ", "\n", " \n", "\t ", "\u00a0", "\u3000", ""])
texts = st.lists(st.tuples(words | odd, spaces), max_size=60).map(lambda parts: "".join(map("".join, parts)))


def made(kind: str, folder: Path) -> Tokenizer:
    if kind in ("splade-tiny", "minilm"):
        return Tokenizer(load_checkpoint(kind))
    if kind == "japanese":
        return Tokenizer(japanese(folder))
    if kind[0].isupper():
        make_tokenizer(folder, kind)
        return Tokenizer(folder)
    backend = Tokenizer(load_checkpoint("splade-tiny")).backend
    if kind == "digits":
        splits = [pre_tokenizers.Punctuation(), pre_tokenizers.Digits(), pre_tokenizers.WhitespaceSplit()]
        backend.pre_tokenizer = pre_tokenizers.Sequence(splits)
    elif kind == "added":
        backend.add_tokens(["heart attack", "a "])
    elif kind in OTHERS and kind != "python":
        backend.normalizer, backend.pre_tokenizer = OTHERS[kind]
    side = "left" if kind == "left" else "right"
    PreTrainedTokenizerFast(tokenizer_object=backend, truncation_side=side).save_pretrained(folder)
    tokenizer = Tokenizer(folder)
    if kind == "python":  # which cannot be saved
        _, tokenizer.backend.pre_tokenizer = OTHERS[kind]
    return tokenizer


@pytest.fixture(scope="module", params=[*SPLIT_AT_SPACES, *OTHERS, "added", "left", "japanese"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return made(request.param, tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def closely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut texts where their first tokens end, or even before."""
    monkeypatch.setattr(module, "CHARACTERS_PER_TOKEN", 2)


@pytest.mark.usefixtures("closely")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(texts, max_size=4), st.integers(1, 9), st.booleans())
def test_a_long_text_has_the_first_of_all_its_tokens(
    tokenizer: Tokenizer, texts: list[str], length: int, special: bool
) -> None:
    before, after = tokenizer.special_tokens if special else (0, 0)
    whole, most = tokenizer.encode(texts, None, special), length + before + after
    expected = [ids[: most - after] + ids[len(ids) - after :] if len(ids) > most else ids for ids in whole]
    if tokenizer._truncation_side == "left":
        expected = [ids[:before] + ids[len(ids) - most + before :] if len(ids) > most else ids for ids in whole]
    assert tokenizer.encode(texts, most, special) == expected


class Watched:
    """A backend that keeps the numbers of characters that it is given at a time."""

    def __init__(self, backend: Any):
        self._backend, self.given = backend, list[int]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def encode_batch_fast(self, texts: list[str], **how: Any) -> Any:
        self.given.append(sum(map(len, texts)))
        return self._backend.encode_batch_fast(texts, **how)


@pytest.mark.parametrize("kind", SPLIT_AT_SPACES)
def test_only_the_beginnings_of_long_texts_are_tokenized(kind: str, tmp_path: Path) -> None:
    watched, text = made(kind, tmp_path), "a repeated infection of the bladder, " * 1000
    watched.backend = Watched(watched.backend)
    assert [len(ids) for ids in Windows.split([text] * 40, watched, 16).tokens] == [16] * 40
    assert sum(watched.backend.given) == pytest.approx(40 * CHARACTERS_PER_TOKEN * 16, rel=0.2)


def test_whole_texts_are_tokenized_so_many_characters_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_CHARACTERS", 100)
    watched = Tokenizer(load_checkpoint("splade-tiny"))
    watched.backend = Watched(watched.backend)
    texts = ["fever " * count for count in (1, 20, 5, 5, 5, 8)]
    windows = Windows.split(texts, watched, 8, overlap=2)
    assert windows.counts.tolist() == [1, 5, 1, 1, 1, 2]
    assert watched.backend.given[-4:] == [6, 120, 90, 48]
    assert watched.lengths(texts) == [3, 22, 7, 7, 7, 10] and watched.backend.given[-4:] == [6, 120, 90, 48]
    assert [*text_batches([5, 95, 1, 101, 1], int)] == [[5, 95], [1], [101], [1]]
    assert [*text_batches("abc", len, max_items=2)] == [["a", "b"], ["c"]]
