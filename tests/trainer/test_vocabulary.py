"""Vocabulary expansion: Algorithm 1 done literally, its criteria, and the checkpoint it gives."""

import json
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import models, trainers
from transformers import AutoModelForMaskedLM, AutoTokenizer

from cai_pyserini.collection.hpo import Hpo
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.settings import build
from cai_pyserini.models.splade import Splade
from cai_pyserini.trainer import vocabulary, wordpiece
from cai_pyserini.trainer.__main__ import main
from cai_pyserini.trainer.settings import VocabularySettings


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [document.contents for document in islice(Hpo().documents(), 1500)]


@pytest.fixture(scope="module")
def backend(checkpoint: Path) -> Backend:
    return AutoTokenizer.from_pretrained(checkpoint).backend_tokenizer


@pytest.fixture(scope="module")
def base(backend: Backend) -> dict[str, int]:
    """A small V_0, so that the steps train small vocabularies; it can spell everything."""
    tokens = sorted(backend.get_vocab().items(), key=lambda item: item[1])
    return {token: i for i, (token, id) in enumerate(t for t in tokens if t[1] < 2000 or len(t[0].strip("#")) == 1)}


def settings(**changes: object) -> VocabularySettings:
    values = {"corpus": ["x"], "base": "x", "output": "x", "increment": 100}
    return build(VocabularySettings, values | changes, "")


def expand(
    texts: list[str], backend: Backend, base: dict[str, int], **changes: object
) -> tuple[list[str], list[vocabulary.Step]]:
    return vocabulary.expand(wordpiece.count_words(texts, backend), base, 5, "[UNK]", settings(**changes))


def literal_step(texts: list[str], backend: Backend, size: int, expected: int, base: dict[str, int]) -> list[str]:
    """A step as the paper writes it: train a tokenizer on the corpus, tokenize the corpus with it, count, sort."""
    counts = wordpiece.count_words(texts, backend)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    continuing = [piece for piece in wordpiece.characters(counts) if piece.startswith("##") and len(piece) == 3]
    domain = Backend(models.WordPiece(unk_token="[UNK]"))
    domain.normalizer, domain.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
    domain.train_from_iterator(
        texts, trainers.WordPieceTrainer(vocab_size=size, special_tokens=special + continuing, show_progress=False)
    )
    found = Counter(token for text in texts for token in domain.encode(text).tokens)
    order = domain.get_vocab()
    new = [t for t in found if t not in base and t not in special and any(c.isalpha() for c in t)]
    return sorted(new, key=lambda t: (-found[t], order[t]))[:expected]


@pytest.mark.slow
def test_steps_are_the_literal_algorithms(texts: list[str], backend: Backend, base: dict[str, int]) -> None:
    for step in (1, 3):
        added, steps = expand(texts, backend, base, max_steps=step)
        assert len(steps) == step + 1
        assert added == literal_step(texts, backend, len(base) + 100 * step, 100 * step, base)


@pytest.mark.slow
def test_entropy_and_tokens_of_the_steps(texts: list[str], backend: Backend, base: dict[str, int]) -> None:
    added, steps = expand(texts, backend, base, max_steps=2)
    grown = Backend(models.WordPiece({t: i for i, t in enumerate([*base, *added])}, unk_token="[UNK]"))
    grown.normalizer, grown.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
    counts = np.array(list(Counter(id for text in texts for id in grown.encode(text).ids).values()))
    assert steps[-1].tokens == counts.sum()
    assert steps[-1].entropy == pytest.approx(float((counts * np.log(counts / counts.sum())).sum()))
    assert steps[0].entropy < steps[1].entropy < steps[2].entropy < 0


def test_it_ends_when_the_corpus_is_exhausted(texts: list[str], backend: Backend, base: dict[str, int]) -> None:
    added, steps = expand(texts[:20], backend, base)
    assert 0 < steps[-1].added - steps[-2].added < 100
    assert len(added) == len(set(added)) == steps[-1].added == steps[-1].vocabulary - len(base)
    assert not [token for token in added if not any(c.isalpha() for c in token)]


@pytest.mark.slow
def test_entropy_criteria_stop_earlier(texts: list[str], backend: Backend, base: dict[str, int]) -> None:
    texts = texts[:800]
    _, every = expand(texts, backend, base)
    gains = [b.entropy - a.entropy for a, b in pairwise(every)]
    for stop, epsilon, limits in (
        ("relative", 0.01, [0.01 * abs(step.entropy) for step in every]),
        ("first", 0.1, [0.1 * gains[0]] * len(gains)),
    ):
        _, steps = expand(texts, backend, base, stop=stop, epsilon=epsilon)
        expected = next(i for i, (gain, limit) in enumerate(zip(gains, limits, strict=False)) if gain < limit) + 1
        assert steps == every[: expected + 1]
        assert len(steps) < len(every)


@pytest.fixture(scope="module")
def expanded(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vocabulary")
    (folder / "corpus.txt").write_text("\n".join(texts) + "\n")
    for name in ("once", "twice"):
        corpus = [str(folder / "corpus.txt")]
        vocabulary.expand_checkpoint(
            settings(corpus=corpus, base="splade-tiny", increment=500, max_steps=2, output=folder / name)
        )
    return folder / "once"


@pytest.mark.slow
def test_the_same_corpus_gives_the_same_checkpoint(expanded: Path) -> None:
    for name in ("tokenizer.json", "model.safetensors"):
        assert (expanded / name).read_bytes() == (expanded.parent / "twice" / name).read_bytes()


def test_new_words_are_tokens_of_the_vocabulary(expanded: Path, checkpoint: Path) -> None:
    old, new = (AutoTokenizer.from_pretrained(folder) for folder in (checkpoint, expanded))
    added = json.loads((expanded / "report.json").read_text())["added"]
    assert new.convert_ids_to_tokens(list(range(len(old), len(new)))) == added
    word = next(token for token in added if not token.startswith("##"))
    assert len(old.tokenize(word)) > 1
    assert new.tokenize(f"{word}, {word.upper()}s") == [word, ",", word, "##s"]  # as from the start, not cut out first
    from_start = Backend(models.WordPiece(new.get_vocab(), unk_token="[UNK]"))
    from_start.normalizer = old.backend_tokenizer.normalizer
    from_start.pre_tokenizer = old.backend_tokenizer.pre_tokenizer
    for text in islice((document.contents for document in Hpo().documents()), 2000, 2100):
        assert new.tokenize(text) == from_start.encode(text).tokens


def test_new_embeddings_are_means_and_old_ones_stay(expanded: Path, checkpoint: Path) -> None:
    old, new = (AutoModelForMaskedLM.from_pretrained(folder) for folder in (checkpoint, expanded))
    base, _ = wordpiece.vocabulary_of(AutoTokenizer.from_pretrained(checkpoint).backend_tokenizer, "base")
    added = json.loads((expanded / "report.json").read_text())["added"]
    before, after = (model.get_input_embeddings().weight.detach() for model in (old, new))
    head = new.get_output_embeddings()
    assert head.weight is new.get_input_embeddings().weight
    assert len(after) == len(head.bias) == new.config.vocab_size == len(before) + len(added)
    assert torch.equal(after[: len(before)], before)
    for row, token in enumerate(added, len(before)):
        pieces = wordpiece.pieces_of(token, base)
        assert pieces
        torch.testing.assert_close(after[row], before[pieces].mean(0))
        torch.testing.assert_close(head.bias[row], old.get_output_embeddings().bias[pieces].mean())


def test_the_result_is_an_encoder(expanded: Path) -> None:
    splade = Splade(expanded, "cpu", "float32")
    assert Path(load_encoder(str(expanded)).checkpoint).samefile(expanded)
    assert splade.encode(["hypoplasia of the thumb"], 256).nnz
    assert (expanded / "entropy.png").stat().st_size > 1000


def test_the_command_shows_the_steps(expanded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = expanded.parent / "corpus.txt"
    flags = ["--corpus", str(corpus), "--base", "splade-tiny", "--increment", "500", "--max-steps", "2"]
    main(["vocabulary", *flags, "--output", str(expanded)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["step", "vocabulary", "added", "tokens", "entropy,", "nats"]
    assert [line.split()[:3] for line in lines[2:5]] == [
        ["0", "30,522", "0"], ["1", "31,022", "500"], ["2", "31,522", "1,000"]
    ]  # fmt: skip
    added = json.loads((expanded / "report.json").read_text())["added"]
    assert lines[6] == f"the most frequent of 1,000 new tokens: {' '.join(added[:40])}"


def test_a_corpus_without_new_words_is_refused(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("the heart of the matter\n")
    corpus = [str(tmp_path / "corpus.txt")]
    with pytest.raises(CaiError, match="nothing to add: the vocabulary of splade-tiny has all words of"):
        vocabulary.expand_checkpoint(settings(corpus=corpus, base="splade-tiny", output=tmp_path / "model"))
