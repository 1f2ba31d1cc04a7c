"""Vocabulary expansion: compared with the tokenizers library and a literal Algorithm 1, and the checkpoint."""

import json
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, trainers
from transformers import AutoModelForMaskedLM, AutoTokenizer

from cai_pyserini.cli.train import main
from cai_pyserini.collections.hpo import Hpo
from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.core.settings import build
from cai_pyserini.models.splade import Splade
from cai_pyserini.trainer.corpus import count_words
from cai_pyserini.trainer.settings import VocabularySettings
from cai_pyserini.trainer.training import require_ids
from cai_pyserini.trainer.vocabulary import Step, expand, split_tokens, train_pieces, wordpiece_vocabulary

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [document.contents for document in islice(Hpo().documents(), 800)]


@pytest.fixture(scope="module")
def backend(checkpoint: Path) -> Backend:
    return AutoTokenizer.from_pretrained(checkpoint).backend_tokenizer


@pytest.fixture(scope="module")
def base(backend: Backend) -> dict[str, int]:
    """A small V_0, so that the steps train small vocabularies; it can spell everything."""
    tokens = sorted(backend.get_vocab().items(), key=lambda item: item[1])
    return {token: i for i, (token, id) in enumerate(t for t in tokens if t[1] < 2000 or len(t[0].strip("#")) == 1)}


def with_vocabulary(backend: Backend, vocabulary: dict[str, int]) -> Backend:
    """A tokenizer that splits text as `backend` does, with another vocabulary."""
    other = Backend(models.WordPiece(vocabulary, unk_token="[UNK]"))
    other.normalizer, other.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
    return other


def test_training_ends_when_every_word_is_one_piece() -> None:
    # aab: 3, ab: 2. Pairs: a ##a 3, ##a ##b 3, a ##b 2; ties go to the pair with the earlier pieces: ##a ##b.
    assert train_pieces(Counter({"aab": 3, "ab": 2}), 99) == ["##a", "##b", "a", "b", "##ab", "aab", "ab"]
    assert train_pieces(Counter({"aab": 3, "ab": 2}), 5) == ["##a", "##b", "a", "b", "##ab"]


def test_tokens_are_split_as_the_tokenizer_does_and_continuations_into_continuations(backend: Backend) -> None:
    base, unknown = wordpiece_vocabulary(backend, "base")
    words = ["methylation", "fever", "immunoglobulins", "xqzw"]
    expected = [backend.encode(word, add_special_tokens=False).ids for word in words]
    assert split_tokens(words, base, unknown) == expected
    small = {"[UNK]": 9, "##thy": 0, "##lation": 1, "thy": 2, "lation": 3, "##t": 5}
    assert split_tokens(["##thylation", "thylation", "##x"], small, "[UNK]") == [[0, 1], [2, 1], [9]]


def test_another_kind_of_tokenizer_is_refused() -> None:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(CaiError, match="some/folder: its tokenizer is BPE; only WordPiece"):
        wordpiece_vocabulary(backend, "some/folder")


def steps_of(
    texts: list[str], backend: Backend, base: dict[str, int], **changes: object
) -> tuple[list[str], list[Step]]:
    values = {"corpus": ["x"], "base": "x", "output": "x", "increment": 100} | changes
    counts = count_words(texts, backend)
    return expand(counts, base, len(SPECIAL), "[UNK]", build(VocabularySettings, values, ""))


@pytest.mark.slow
def test_steps_are_the_literal_algorithms(texts: list[str], backend: Backend, base: dict[str, int]) -> None:
    """The paper's step, literally: train a tokenizer on the corpus, tokenize the corpus with it, count, sort."""
    step = 3
    added, steps = steps_of(texts, backend, base, max_steps=step)
    continuing = sorted({f"##{c}" for word in count_words(texts, backend) for c in word[1:]})
    trainer = trainers.WordPieceTrainer(
        vocab_size=len(base) + 100 * step, special_tokens=SPECIAL + continuing, show_progress=False
    )  # in a fixed order, which would be random otherwise
    domain = with_vocabulary(backend, {"[UNK]": 0})
    domain.train_from_iterator(texts, trainer)
    found = Counter(token for text in texts for token in domain.encode(text).tokens)
    order = domain.get_vocab()
    new = [t for t in found if t not in base and t not in SPECIAL and any(c.isalpha() for c in t)]
    assert added == sorted(new, key=lambda t: (-found[t], order[t]))[: 100 * step]
    assert len(steps) == step + 1
    grown = with_vocabulary(backend, {t: i for i, t in enumerate([*base, *added])})
    counts = np.array(list(Counter(id for text in texts for id in grown.encode(text).ids).values()))
    assert steps[-1].tokens == counts.sum()
    assert steps[-1].entropy == pytest.approx(float((counts * np.log(counts / counts.sum())).sum()))


@pytest.mark.slow
def test_it_ends_when_the_corpus_is_exhausted(texts: list[str], backend: Backend, base: dict[str, int]) -> None:
    added, every = steps_of(texts, backend, base, increment=200)
    assert 0 < every[-1].added - every[-2].added < 200
    assert len(added) == len(set(added)) == every[-1].added == every[-1].vocabulary - len(base)
    assert not [token for token in added if not any(c.isalpha() for c in token)]


@pytest.fixture(scope="module")
def expanded(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vocabulary")
    (folder / "corpus.txt").write_text("\n".join(texts) + "\n")
    run(folder / "corpus.txt", folder / "once")
    return folder / "once"


def run(corpus: Path, output: Path, base: str | Path = "splade-tiny") -> None:
    flags = ["--corpus", str(corpus), "--base", str(base), "--increment", "200", "--max-steps", "2"]
    main(["vocabulary", *flags, "--output", str(output)])


@pytest.mark.slow
def test_the_same_corpus_gives_the_same_checkpoint(expanded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = expanded.parent / "again"
    run(expanded.parent / "corpus.txt", again)
    for name in ("tokenizer.json", "model.safetensors"):
        assert (expanded / name).read_bytes() == (again / name).read_bytes()
    printed = f"{again}: 400 new tokens in 2 steps, see report.json and entropy.png; 30,922 in all\n"
    assert capsys.readouterr().out == printed


@pytest.mark.slow
def test_new_words_are_tokens_of_the_vocabulary(expanded: Path, checkpoint: Path) -> None:
    old, new = (AutoTokenizer.from_pretrained(folder) for folder in (checkpoint, expanded))
    added = json.loads((expanded / "report.json").read_text())["added"]
    assert new.convert_ids_to_tokens(list(range(len(old), len(new)))) == added
    word = next(token for token in added if not token.startswith("##"))
    assert len(old.tokenize(word)) > 1
    assert new.tokenize(f"{word}, {word.upper()}s") == [word, ",", word, "##s"]  # as from the start, not cut out first
    from_start = with_vocabulary(old.backend_tokenizer, new.get_vocab())
    for text in islice((document.contents for document in Hpo().documents()), 2000, 2100):
        assert new.tokenize(text) == from_start.encode(text).tokens
    assert Path(load_encoder(str(expanded)).checkpoint).samefile(expanded)
    assert Splade(expanded, "cpu", "float32").encode(["hypoplasia of the thumb"], 256).nnz


@pytest.mark.slow
def test_new_embeddings_are_means_and_old_ones_stay(expanded: Path, checkpoint: Path) -> None:
    old, new = (AutoModelForMaskedLM.from_pretrained(folder) for folder in (checkpoint, expanded))
    base, unknown = wordpiece_vocabulary(AutoTokenizer.from_pretrained(checkpoint).backend_tokenizer, "base")
    added = json.loads((expanded / "report.json").read_text())["added"]
    before, after = (model.get_input_embeddings().weight.detach() for model in (old, new))
    head = new.get_output_embeddings()
    assert head.weight is new.get_input_embeddings().weight
    assert len(after) == len(head.bias) == new.config.vocab_size == len(before) + len(added)
    assert torch.equal(after[: len(before)], before)
    for row, pieces in enumerate(split_tokens(added, base, unknown), len(before)):
        torch.testing.assert_close(after[row], before[pieces].mean(0))
        torch.testing.assert_close(head.bias[row], old.get_output_embeddings().bias[pieces].mean())


def test_a_corpus_without_new_words_is_refused(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("the heart of the matter\n")
    with pytest.raises(CaiError, match="nothing to add: the vocabulary of splade-tiny has all words of"):
        run(tmp_path / "corpus.txt", tmp_path / "model")


def with_added_tokens(checkpoint: Path, folder: Path, rows: int, special: bool = False) -> Path:
    """The checkpoint with two tokens that are not in its vocabulary, and this number of embeddings."""
    tokenizer, model = (kind.from_pretrained(checkpoint) for kind in (AutoTokenizer, AutoModelForMaskedLM))
    tokenizer.add_tokens(["warfarin", "[DOC]"], special_tokens=special)
    model.resize_token_embeddings(rows, mean_resizing=False)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("special", "rows"), [(False, 30_524), (True, 30_592)])  # as many as tokens, and padded
def test_tokens_added_before_keep_their_ids_and_embeddings(
    checkpoint: Path, tmp_path: Path, special: bool, rows: int
) -> None:
    base = with_added_tokens(checkpoint, tmp_path / "base", rows, special)
    (tmp_path / "corpus.txt").write_text("warfarin or zyxomab for covid and zyxomab\n")
    run(tmp_path / "corpus.txt", tmp_path / "out", base)
    old, new = (AutoTokenizer.from_pretrained(folder) for folder in (base, tmp_path / "out"))
    ids = new.get_vocab()
    assert [ids[token] for token in ("warfarin", "[DOC]", "zyxomab", "covid")] == [*range(30_522, 30_526)]
    assert {token: ids[token] for token in old.get_vocab()} == old.get_vocab()
    assert len({*ids.values()}) == len(ids) == len(new) == 30_526
    before, after = (AutoModelForMaskedLM.from_pretrained(folder) for folder in (base, tmp_path / "out"))
    for table in ("get_input_embeddings", "get_output_embeddings"):
        old_rows, new_rows = (getattr(model, table)().weight for model in (before, after))
        assert torch.equal(new_rows[:30_524], old_rows[:30_524]) and len(new_rows) == 30_526
    assert torch.equal(after.get_output_embeddings().bias[:30_524], before.get_output_embeddings().bias[:30_524])
    text = "warfarins for a warfarin-treated heart [DOC]"
    assert new.tokenize(text) == old.tokenize(text)
    assert new.tokenize(text)[:2] == ["warfarin", "s"] and ("[DOC]" in new.tokenize(text)) == special


def test_a_base_whose_tokens_have_no_embeddings_of_their_own_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("zyxomab\n")
    base = with_added_tokens(checkpoint, tmp_path / "base", 30_522)
    with pytest.raises(CaiError, match="ids up to 30,523 but the model only 30,522 embeddings"):
        run(tmp_path / "corpus.txt", tmp_path / "out", base)


def test_a_written_tokenizer_that_loads_with_other_ids_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    base = with_added_tokens(checkpoint, tmp_path / "base", 30_524)
    data = json.loads((base / "tokenizer.json").read_text())
    data["model"]["vocab"] |= {"covid": 30_524}  # of 30,523 entries, so that [DOC] loads as 30,524
    (base / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(CaiError, match="other ids than the checkpoint's for 3 tokens, such as "):
        require_ids(base, AutoTokenizer.from_pretrained(checkpoint).get_vocab())
