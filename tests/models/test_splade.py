"""SPLADE vectors against the plain definition, max over tokens of log(1 + relu(logit)), of transformers' own models."""

import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, processors, trainers
from transformers import AutoModelForMaskedLM, AutoTokenizer, PreTrainedTokenizerFast

from cai_pyserini.cli import CaiError
from cai_pyserini.splade import Splade, Tokenizer, batches, resolve_device

TEXTS = [
    "Recurrent infections of the bladder are treated with nitrofurantoin.",
    "fever",
    "Körpergröße und β-Blocker: naïve Unicode, 血圧 und ½ mg.",
    "Dietary phytate, found in the bran of cereals, suppresses the growth of colon tumours in rats. " * 6,
    "what lowers high blood pressure?",
    "[MASK] | \" \\ '",
]


def plain(checkpoint: Path, texts: list[str], max_length: int = 256) -> np.ndarray:
    """The definition, a text at a time: there is no padding to go wrong."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModelForMaskedLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    rows = []
    for text in texts:
        tokens = tokenizer(text, truncation=True, max_length=max_length, return_tensors="pt")
        with torch.inference_mode():
            rows.append(torch.log1p(torch.relu(model(**tokens).logits[0])).amax(0).numpy())
    return np.stack(rows)


@pytest.fixture(scope="module")
def splade(checkpoint: Path) -> Splade:
    return Splade(checkpoint, "cpu", "float32")


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> np.ndarray:
    return plain(checkpoint, TEXTS)


@pytest.mark.parametrize("batch_size", [None, 1, 2, 64])
def test_weights_are_the_definition_in_any_batch(splade: Splade, expected: np.ndarray, batch_size: int | None) -> None:
    weights = splade.encode(TEXTS, 256, batch_size)
    assert weights.dtype == np.float32
    assert (weights.data > 0).all()
    np.testing.assert_allclose(weights.toarray(), expected, atol=1e-4)


@pytest.mark.parametrize("max_length", [3, 8])
def test_only_the_first_tokens_count(splade: Splade, checkpoint: Path, max_length: int) -> None:
    weights = splade.encode(TEXTS, max_length).toarray()
    np.testing.assert_allclose(weights, plain(checkpoint, TEXTS, max_length), atol=1e-4)


def test_small_vocabulary_blocks_change_nothing(
    splade: Splade, expected: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cai_pyserini.head.BLOCK_BYTES", {"cpu": 1})  # the least block, of which the last is cut
    np.testing.assert_allclose(splade.encode(TEXTS, 256).toarray(), expected, atol=1e-4)


def test_bfloat16_is_close(checkpoint: Path, expected: np.ndarray) -> None:
    weights = Splade(checkpoint, "cpu", "bfloat16").encode(TEXTS, 256).toarray()
    np.testing.assert_allclose(weights, expected, atol=0.1)
    found, wanted = weights > 0.2, expected > 0.2
    assert (found & wanted).sum() >= 0.95 * (found | wanted).sum()


def test_blank_texts_are_empty_rows_among_the_others(splade: Splade, expected: np.ndarray) -> None:
    weights = splade.encode(["", TEXTS[0], " \n\t", "\u3000", TEXTS[1]], 256).toarray()
    assert not weights[[0, 2, 3]].any()
    np.testing.assert_allclose(weights[[1, 4]], expected[:2], atol=1e-4)


@pytest.mark.parametrize("texts", [[], [""], ["", " "]])
def test_nothing_gives_an_empty_matrix(splade: Splade, texts: list[str]) -> None:
    weights = splade.encode(texts, 256)
    assert weights.shape == (len(texts), len(splade.tokenizer))
    assert weights.nnz == 0


def test_a_long_text_is_refused_by_length_not_by_a_crash(splade: Splade, checkpoint: Path) -> None:
    assert splade.encode(["fever " * 600], 512).nnz
    with pytest.raises(CaiError, match="reads at most 512 tokens, not 513"):
        splade.encode(["fever"], 513)


def test_batches_worked_example() -> None:
    assert list(batches([3, 9, 1, 5, 2], max_tokens=10, max_rows=2)) == [[1], [3, 0], [4, 2]]
    assert list(batches([4, 4, 4], max_tokens=3, max_rows=8)) == [[0], [1], [2]]  # one text is the least
    assert list(batches([], max_tokens=10, max_rows=2)) == []


@pytest.mark.parametrize("seed", range(5))
def test_batches_keep_their_budget(seed: int) -> None:
    draw = random.Random(seed)
    lengths = [draw.randint(1, 60) for _ in range(draw.randint(1, 200))]
    max_tokens, max_rows = draw.randint(60, 300), draw.randint(1, 40)
    made = list(batches(lengths, max_tokens, max_rows))
    order = [i for batch in made for i in batch]
    assert sorted(order) == list(range(len(lengths)))
    assert [lengths[i] for i in order] == sorted(lengths, reverse=True)
    assert all(0 < len(batch) <= max_rows for batch in made)
    assert all(len(batch) * lengths[batch[0]] <= max_tokens for batch in made)


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path) -> Tokenizer:
    return Tokenizer(checkpoint)


def test_terms_are_the_names_of_the_ids(tokenizer: Tokenizer, checkpoint: Path) -> None:
    stock = AutoTokenizer.from_pretrained(checkpoint)
    assert len(tokenizer) == len(tokenizer.terms) == len(stock)
    assert tokenizer.terms == stock.convert_ids_to_tokens(list(range(len(stock))))
    assert {"|", '"', "\\", "#", "##ing", "[CLS]"} <= set(tokenizer.terms)


def test_terms_are_unique_and_free_of_white_space(tmp_path: Path) -> None:
    odd = [" ", "\u3000", "", "a b", "c\n", "d\x01e", "\u00a0"]
    vocabulary = {token: i for i, token in enumerate(["[UNK]", "x", *odd, "y"])}
    backend = Backend(models.WordLevel(vocabulary, unk_token="[UNK]"))
    PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]").save_pretrained(tmp_path)
    terms = Tokenizer(tmp_path).terms
    assert terms[:2] + terms[9:] == ["[UNK]", "x", "y"]
    assert len(set(terms)) == 10
    assert all(term.split() == [term] and "\x01" not in term for term in terms)


def test_bag_of_words_counts_word_pieces(tokenizer: Tokenizer) -> None:
    counts = tokenizer.bag_of_words(["Cancer of the colon: colon cancer, colon!", "", "fever"], 256)
    assert counts.shape == (3, len(tokenizer))
    row = {tokenizer.terms[i]: n for i, n in zip(counts[0].indices, counts[0].data, strict=True)}
    assert row == {"cancer": 2, "of": 1, "the": 1, "colon": 3, ":": 1, ",": 1, "!": 1}
    assert counts[1].nnz == 0
    assert counts[2].sum() == 1


def test_bag_of_words_has_what_the_model_would_read(tokenizer: Tokenizer) -> None:
    text = "colon cancer fever " * 3
    for max_length in (3, 4, 6, 64):
        read = tokenizer.encode([text], max_length)[0][1:-1]  # without [CLS] and [SEP]
        assert tokenizer.bag_of_words([text], max_length).sum() == len(read) == min(9, max_length - 2)


def test_truncation_does_not_outlive_a_call(tokenizer: Tokenizer) -> None:
    text = "colon " * 1000
    assert [len(t) for t in tokenizer.encode([text], 5)] == [5]
    assert [len(t) for t in tokenizer.encode([text], None, special=False)] == [1000]
    assert [len(t) for t in tokenizer.encode([text, "colon"], 7)] == [7, 3]


# Other architectures: transformers' own models, tiny and random.

SENTENCES = [text.lower() for text in TEXTS] + ["Repeated bladder infections", "marathon runners with heart attacks"]
BERT_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA_TOKENS = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
POSITIONS = 40

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
POSITIONAL = {"max_position_embeddings": POSITIONS}
ARCHITECTURES = {
    "Bert": SIZES | POSITIONAL,
    "DistilBert": {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48} | POSITIONAL,
    "Roberta": SIZES | POSITIONAL,
    "XLMRoberta": SIZES | POSITIONAL,
    "MPNet": SIZES | POSITIONAL,
    "Electra": SIZES | POSITIONAL | {"embedding_size": 16},
    "Albert": SIZES | POSITIONAL | {"embedding_size": 16},
    "DebertaV2": SIZES | POSITIONAL | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "ModernBert": SIZES | POSITIONAL | {"global_attn_every_n_layers": 2, "local_attention": 8},
}


def make_tokenizer(folder: Path, roberta: bool) -> dict[str, int]:
    """Train a small word-piece tokenizer into `folder`, and give the configuration that goes with it."""
    names = ROBERTA_TOKENS if roberta else BERT_TOKENS
    # RoBERTa counts positions from its padding id on, so that id matters: <s> <pad> </s> <unk> <mask>.
    order = [names[i] for i in ((2, 0, 3, 1, 4) if roberta else range(5))]
    pad, unk, cls, sep, mask = names
    backend = Backend(models.WordPiece(unk_token=unk))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.train_from_iterator(SENTENCES, trainers.WordPieceTrainer(vocab_size=300, special_tokens=order))
    ids = {name: backend.token_to_id(name) for name in names}
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}", special_tokens=[(cls, ids[cls]), (sep, ids[sep])]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=pad, unk_token=unk, cls_token=cls, sep_token=sep, mask_token=mask
    )
    fast.save_pretrained(folder)
    special = {"pad_token_id": ids[pad], "bos_token_id": ids[cls], "eos_token_id": ids[sep]}
    return {"vocab_size": backend.get_vocab_size(), "cls_token_id": ids[cls], "sep_token_id": ids[sep]} | special


def make_model(folder: Path, architecture: str, head: str = "ForMaskedLM", extra: int = 0) -> Path:
    """A random model with weights large enough to tell a wrong result from a right one, and its tokenizer."""
    torch.manual_seed(0)
    settings = make_tokenizer(folder, architecture in ("Roberta", "XLMRoberta", "MPNet"))
    settings["vocab_size"] += extra
    config = getattr(transformers, f"{architecture}Config")(**settings, **ARCHITECTURES[architecture])
    model = getattr(transformers, f"{architecture}{head}")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return folder


@pytest.fixture(params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest) -> str:
    return request.param


def test_every_architecture_gives_the_definition(tmp_path: Path, architecture: str) -> None:
    checkpoint = make_model(tmp_path, architecture)
    texts = [*SENTENCES[:3], "", *SENTENCES[4:]]
    wanted = plain(checkpoint, texts, 24)
    wanted[3] = 0
    assert wanted.max() > 0.5
    splade = Splade(checkpoint, "cpu", "float32")
    for batch_size in (1, 16):
        np.testing.assert_allclose(splade.encode(texts, 24, batch_size).toarray(), wanted, atol=1e-4)


def test_more_tokens_than_positions_are_refused_in_every_architecture(tmp_path: Path, architecture: str) -> None:
    checkpoint = make_model(tmp_path, architecture)
    splade = Splade(checkpoint, "cpu", "float32")
    long = " ".join(SENTENCES)
    with pytest.raises(CaiError, match="reads at most"):
        splade.encode([long], POSITIONS + 1)
    try:  # RoBERTa and its kin use up some positions themselves: that many is more than they read
        weights = splade.encode([long], POSITIONS)
    except CaiError:
        return
    np.testing.assert_allclose(weights.toarray(), plain(checkpoint, [long], POSITIONS), atol=1e-4)


def test_a_decoder_may_be_larger_than_the_vocabulary(tmp_path: Path) -> None:
    checkpoint = make_model(tmp_path, "Bert", extra=13)
    splade = Splade(checkpoint, "cpu", "float32")
    weights = splade.encode(SENTENCES, 24).toarray()
    wanted = plain(checkpoint, SENTENCES, 24)
    assert wanted.shape[1] == weights.shape[1] + 13 == len(splade.tokenizer) + 13
    np.testing.assert_allclose(weights, wanted[:, :-13], atol=1e-4)


def test_a_larger_tokenizer_than_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CaiError, match=r"the tokenizer has \d+ entries but the model only \d+; they do not belong"):
        Splade(make_model(tmp_path, "Bert", extra=-5), "cpu")


@pytest.mark.parametrize(
    "architecture, head",
    [("Bert", "Model"), ("Bert", "ForSequenceClassification"), ("DistilBert", "Model"), ("Roberta", "Model")],
)
def test_a_checkpoint_without_a_head_is_refused(tmp_path: Path, architecture: str, head: str) -> None:
    with pytest.raises(CaiError, match=r"has no masked-language-model head: its weights lack .*AutoModelForMaskedLM"):
        Splade(make_model(tmp_path, architecture, head), "cpu")


def test_a_model_that_is_no_masked_one_is_refused(tmp_path: Path) -> None:
    settings = make_tokenizer(tmp_path, roberta=False)
    config = transformers.GPT2Config(vocab_size=settings["vocab_size"], n_embd=32, n_layer=1, n_head=2)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    with pytest.raises(CaiError, match="has no masked-language-model head"):
        Splade(tmp_path, "cpu")


@pytest.fixture
def copied(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of splade-tiny to break."""
    return Path(shutil.copytree(checkpoint, tmp_path / "copied"))


def test_a_checkpoint_without_safetensors_is_refused(copied: Path) -> None:
    (copied / "model.safetensors").unlink()
    torch.save({"weight": torch.zeros(1)}, copied / "pytorch_model.bin")
    with pytest.raises(CaiError, match=r"has no \*\.safetensors; other formats can run code"):
        Splade(copied, "cpu")


@pytest.mark.parametrize("name, message", [("config.json", "no config.json"), ("tokenizer.json", "no tokenizer")])
def test_a_file_that_is_missing_is_named(copied: Path, name: str, message: str) -> None:
    (copied / name).unlink()
    for other in ("vocab.txt", "tokenizer.model"):
        (copied / other).unlink(missing_ok=True)
    with pytest.raises(CaiError, match=message):
        Splade(copied, "cpu")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_file_that_was_cut_is_refused(copied: Path, name: str) -> None:
    data = (copied / name).read_bytes()
    (copied / name).write_bytes(data[: len(data) // 2])
    with pytest.raises((CaiError, OSError), match="copied"):  # a command shows either as one line
        Splade(copied, "cpu")


@pytest.mark.parametrize("device", ["gpu", "mps", "meta", "", "cuda:99"])
def test_an_unknown_device_is_refused(device: str) -> None:
    with pytest.raises(CaiError, match=f"no device '{device}'"):
        resolve_device(device)
