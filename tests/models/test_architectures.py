"""Tiny random models of many architectures: vectors equal the definition, or an error says why not."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch
import transformers
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, processors, trainers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.checkpoint import checkpoint_digest, require_positions
from cai_pyserini.models.dense import Dense
from cai_pyserini.models.splade import Splade
from cai_pyserini.models.tokenizer import Tokenizer
from tests.models.test_splade import TEXTS, plain

SENTENCES = [text.lower() for text in TEXTS] + ["Repeated bladder infections", "marathon runners with heart attacks"]
BERT_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA_TOKENS = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
CAMEMBERT_TOKENS = ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>"]
ROBERTAS = ("Roberta", "XLMRoberta", "Camembert", "MPNet")
BYTES = ("Roberta", "ModernBert")  # byte-level BPE
UNIGRAMS = {
    "XLMRoberta": transformers.XLMRobertaTokenizer,
    "Camembert": transformers.CamembertTokenizer,
    "DebertaV2": transformers.DebertaV2Tokenizer,
    "DebertaV3": transformers.DebertaV2Tokenizer,
}
POSITIONS = 40

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
POSITIONAL = {"max_position_embeddings": POSITIONS}
ARCHITECTURES = {
    "Bert": SIZES | POSITIONAL,
    "DistilBert": {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48} | POSITIONAL,
    "Roberta": SIZES | POSITIONAL,
    "XLMRoberta": SIZES | POSITIONAL,
    "Camembert": SIZES | POSITIONAL,
    "MPNet": SIZES | POSITIONAL,
    "Electra": SIZES | POSITIONAL | {"embedding_size": 16},
    "Albert": SIZES | POSITIONAL | {"embedding_size": 16},
    "DebertaV2": SIZES | POSITIONAL | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "DebertaV3": SIZES
    | POSITIONAL
    | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8, "norm_rel_ebd": "layer_norm"}
    | {"share_att_key": True, "position_biased_input": False, "type_vocab_size": 0, "max_relative_positions": -1},
    "ModernBert": SIZES | POSITIONAL | {"global_attn_every_n_layers": 2, "local_attention": 8},
}


def make_tokenizer(folder: Path, architecture: str) -> dict[str, int]:
    """Train and save a small tokenizer of the architecture's kind; returns the configuration values that it needs."""
    pad, unk, cls, sep, mask = ROBERTA_TOKENS if architecture in ROBERTAS else BERT_TOKENS
    # RoBERTa counts positions from its padding id on, so that id matters.
    special = [cls, pad, sep, unk, mask] if architecture in ROBERTAS else BERT_TOKENS
    fast: Any
    if architecture in UNIGRAMS:
        backend = Backend(models.Unigram())
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        backend.train_from_iterator(SENTENCES, trainers.UnigramTrainer(vocab_size=300, unk_token=unk))
        pieces = [tuple(piece) for piece in json.loads(backend.to_str())["model"]["vocab"] if piece[0] != unk]
        first = CAMEMBERT_TOKENS if architecture == "Camembert" else special[:4]
        fast = UNIGRAMS[architecture](vocab=[*((token, 0.0) for token in first), *pieces])
    elif architecture in BYTES:
        backend = Backend(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
        backend.train_from_iterator(SENTENCES, trainer)
    else:
        backend = Backend(models.WordPiece(unk_token=unk))
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.train_from_iterator(SENTENCES, trainers.WordPieceTrainer(vocab_size=300, special_tokens=special))
    if architecture not in UNIGRAMS:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{cls} $A {sep}", special_tokens=[(token, backend.token_to_id(token)) for token in (cls, sep)]
        )
        fast = PreTrainedTokenizerFast(
            tokenizer_object=backend, pad_token=pad, unk_token=unk, cls_token=cls, sep_token=sep, mask_token=mask
        )
    fast.save_pretrained(folder)
    ids = {f"{name}_token_id": getattr(fast, f"{name}_token_id") for name in ("pad", "cls", "sep")}
    return {"vocab_size": len(fast), "bos_token_id": fast.cls_token_id, "eos_token_id": fast.sep_token_id} | ids


def make_model(folder: Path, architecture: str, head: str = "ForMaskedLM", extra: int = 0, **more: bool | int) -> Path:
    """A random model with weights large enough to tell a wrong result from a right one, and its tokenizer."""
    torch.manual_seed(0)
    settings = make_tokenizer(folder, architecture)
    settings["vocab_size"] += extra
    name = architecture.replace("DebertaV3", "DebertaV2")
    config = getattr(transformers, f"{name}Config")(**settings, **(ARCHITECTURES[architecture] | more))
    model = getattr(transformers, f"{name}{head}")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return folder


ENDLESS = ("DebertaV3", "ModernBert")  # with relative or rotary positions
FAST = ("Bert", "Roberta")  # the others in the slow tests


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in ARCHITECTURES],
)
def architecture(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def made(architecture: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Splade]:
    """A checkpoint of the architecture, opened once."""
    checkpoint = make_model(tmp_path_factory.mktemp(architecture), architecture)
    return checkpoint, Splade(checkpoint, "cpu", "float32")


def test_every_architecture_gives_the_definition(made: tuple[Path, Splade]) -> None:
    checkpoint, splade = made
    texts = [*SENTENCES[:3], "", *SENTENCES[4:]]
    expected = plain(checkpoint, texts, 24)
    expected[3] = 0
    assert expected.max() > 0.5
    for batch_size in (1, 16):
        np.testing.assert_allclose(splade.encode(texts, 24, batch_size).toarray(), expected, atol=1e-4)


def test_more_tokens_than_positions_are_refused_in_every_architecture(
    made: tuple[Path, Splade], architecture: str
) -> None:
    """Also before the weights are loaded; only relative and rotary positions are unlimited."""
    checkpoint, splade = made
    long = " ".join(SENTENCES)
    # RoBERTa and others count positions from the padding id + 1 on, which is 2 with these tokenizers.
    room = POSITIONS - 2 * (architecture in ROBERTAS)
    read = 2 * POSITIONS if architecture in ENDLESS else room
    weights = splade.encode([long], read)
    np.testing.assert_allclose(weights.toarray(), plain(checkpoint, [long], read), atol=1e-4)
    require_positions(checkpoint, {"--length": read})
    if architecture not in ENDLESS:
        with pytest.raises(CaiError, match=f"reads at most {room} tokens, not {room + 1}"):
            splade.encode([long], room + 1)
        with pytest.raises(CaiError, match=f"{checkpoint} has {room} positions, too few for --length 1024: set it to"):
            require_positions(checkpoint, {"max_query_length": room, "--length": 1024})


def test_a_decoder_with_weights_of_its_own(tmp_path: Path) -> None:
    checkpoint = make_model(tmp_path, "Bert", tie_word_embeddings=False)
    splade = Splade(checkpoint, "cpu", "float32")
    embeddings = splade.transformer._model.get_input_embeddings().weight
    assert not torch.equal(embeddings, splade.transformer._model.get_output_embeddings().weight)
    np.testing.assert_allclose(splade.encode(SENTENCES, 24).toarray(), plain(checkpoint, SENTENCES, 24), atol=1e-4)


class Sizes(TorchDispatchMode):
    """Record the number of elements of every new tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.made: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        out = function(*arguments, **(keywords or {}))
        self.made |= {each.numel() for each in tree_leaves(out) if isinstance(each, torch.Tensor)}
        return out


def test_a_text_of_thousands_of_tokens_is_read_without_its_logits(tmp_path: Path) -> None:
    checkpoint = make_model(tmp_path, "ModernBert", max_position_embeddings=8192)
    text = " ".join(SENTENCES * 16)
    splade = Splade(checkpoint, "cpu", "float32")
    tokens = splade.tokenizer.lengths([text])[0]
    logits = tokens * len(splade.tokenizer)
    assert 3000 < tokens < 8192
    with Sizes() as sizes:
        weights = splade.encode([text], 8192).toarray()
    with Sizes() as whole:
        expected = plain(checkpoint, [text], 8192)
    np.testing.assert_allclose(weights, expected, atol=1e-4)
    assert logits in whole.made and logits not in sizes.made


def test_a_sentencepiece_model_alone_is_a_tokenizer(tmp_path: Path) -> None:
    checkpoint = make_model(tmp_path, "XLMRoberta", extra=300)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (checkpoint / name).unlink()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_prefix=str(checkpoint / "sentencepiece.bpe"),
        vocab_size=80,
        minloglevel=2,
    )
    tokenizer, stock = Tokenizer(checkpoint), AutoTokenizer.from_pretrained(checkpoint)
    assert tokenizer.encode(SENTENCES, None) == stock(SENTENCES)["input_ids"]
    assert (
        tokenizer.encode(["fever"], None, special=False)[0][0]
        == stock.convert_tokens_to_ids(tokenizer.pieces("fever"))[0]
    )
    before = checkpoint_digest(checkpoint, tokenizer_only=True)
    (checkpoint / "sentencepiece.bpe.model").write_bytes(b"other")
    assert checkpoint_digest(checkpoint, tokenizer_only=True) != before


def test_numbers_without_a_token_keep_those_after_them(tmp_path: Path) -> None:
    checkpoint = make_model(tmp_path, "Bert", extra=3)
    path = checkpoint / "tokenizer.json"
    settings = json.loads(path.read_text())
    vocabulary = settings["model"]["vocab"]
    last = max(vocabulary, key=vocabulary.get)
    vocabulary[last] += 3
    path.write_text(json.dumps(settings))
    splade = Splade(checkpoint, "cpu", "float32")
    assert len(splade.tokenizer) == splade.tokenizer.ids[last] + 1 == len(vocabulary) + 3
    np.testing.assert_allclose(splade.encode([last], 24).toarray(), plain(checkpoint, [last], 24), atol=1e-4)
    assert splade.tokenizer.bag_of_words([last], 24).indices.tolist() == [len(vocabulary) + 2]


def test_a_vocabulary_of_another_kind_is_no_tokenizer(tmp_path: Path) -> None:
    """The library would accept RoBERTa's five special tokens as the vocabulary, and every word would be unknown."""
    checkpoint = make_model(tmp_path, "Roberta")
    (checkpoint / "vocab.txt").write_text("\n".join(Tokenizer(checkpoint).terms), encoding="utf-8")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (checkpoint / name).unlink()
    with pytest.raises(CaiError, match=r"no tokenizer \(tokenizer\.json\) in this folder$"):
        Splade(checkpoint, "cpu")


def test_a_decoder_may_be_larger_than_the_vocabulary(tmp_path: Path) -> None:
    checkpoint = make_model(tmp_path, "Bert", extra=13)
    splade = Splade(checkpoint, "cpu", "float32")
    weights = splade.encode(SENTENCES, 24).toarray()
    expected = plain(checkpoint, SENTENCES, 24)
    assert expected.shape[1] == weights.shape[1] + 13 == len(splade.tokenizer) + 13
    np.testing.assert_allclose(weights, expected[:, :-13], atol=1e-4)


@pytest.mark.parametrize("encoder", [Splade, Dense])
def test_a_larger_tokenizer_than_model_is_refused(tmp_path: Path, encoder: type[Splade] | type[Dense]) -> None:
    with pytest.raises(CaiError, match=r"the tokenizer has \d+ entries but the model only \d+; they do not belong"):
        encoder(make_model(tmp_path, "Bert", extra=-5), "cpu")


def test_a_checkpoint_without_a_head_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CaiError, match=r"has no masked-language-model head: its weights lack .*AutoModelForMaskedLM"):
        Splade(make_model(tmp_path, "Bert", "Model"), "cpu")


@pytest.mark.parametrize("encoder", [Splade, Dense])
def test_weights_of_other_shapes_than_the_configuration_are_refused(
    tmp_path: Path, encoder: type[Splade] | type[Dense]
) -> None:
    config = make_model(tmp_path, "Bert") / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"intermediate_size": 7}))
    with pytest.raises(CaiError, match=f"^{tmp_path} has no .*: its weights have other shapes than config.json says"):
        encoder(tmp_path, "cpu")


def test_a_head_without_a_decoder_at_its_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CaiError, match="the head of DebertaV2ForMaskedLM does more than a linear decoder at its end"):
        Splade(make_model(tmp_path, "DebertaV3", legacy=False), "cpu")


def test_a_model_that_is_no_masked_one_is_refused(tmp_path: Path) -> None:
    settings = make_tokenizer(tmp_path, "Bert")
    config = transformers.GPT2Config(vocab_size=settings["vocab_size"], n_embd=32, n_layer=1, n_head=2)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    with pytest.raises(CaiError, match="has no masked-language-model head"):
        Splade(tmp_path, "cpu")
