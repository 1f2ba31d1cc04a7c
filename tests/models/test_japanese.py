"""Japanese BERTs have the token ids of transformers; other tokenizers written in Python are refused."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from transformers import AutoTokenizer

from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.models.tokenizer import Tokenizer
from tests.conftest import DATA
from tests.models.kinds import change, japanese

COLLECTION = BeirFolder(DATA / "ja", "ja")
TEXTS = [
    *(document.contents for document in COLLECTION.documents()),
    *COLLECTION.topics("test").values(),
    *("", "\u3000", "ＡＢＣ ｶﾞｷﾞ ①㌔ abc", "[MASK]は [UNK] [mask][Q]です", "a\tb\nc\r\n d", "x" * 120 + " あ"),
    *("\x00\x01あ", "か\u3099き\u309a", "e\u0301 é İstanbul ß", "##a # ##", "foo\u2028bar\x85baz\ufeff", "한국어 ﷽"),
    *("😀👨‍👩‍👧 漢字", "痛" * 300),
]


@pytest.mark.parametrize(
    "subwords, settings",
    [
        ("wordpiece", {}),
        ("character", {}),
        ("wordpiece", {"do_lower_case": True, "truncation_side": "left"}),
        ("character", {"mecab_kwargs": {"mecab_dic": "ipadic"}}),
        ("wordpiece", {"word_tokenizer_type": "basic"}),
        ("character", {"do_word_tokenize": False, "extra_special_tokens": ["[Q]"]}),
    ],
)
def test_ids_are_those_of_transformers(subwords: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """Normalized, split, lower-cased and truncated as in transformers; the vocabulary has all tokens."""
    if "mecab_kwargs" in settings:
        pytest.importorskip("ipadic")
    checkpoint = japanese(tmp_path, subwords, **settings)
    stock, tokenizer = AutoTokenizer.from_pretrained(checkpoint), Tokenizer(checkpoint)
    expected = stock(TEXTS)["input_ids"]
    assert tokenizer.encode(TEXTS, None) == expected
    assert len({id for ids in expected for id in ids}) > 100
    assert tokenizer.encode(TEXTS, 9) == stock(TEXTS, truncation=True, max_length=9)["input_ids"]
    assert tokenizer.encode(TEXTS, None, special=False) == stock(TEXTS, add_special_tokens=False)["input_ids"]
    assert tokenizer.lengths(TEXTS) == [*map(len, expected)]
    assert tokenizer.ids == stock.get_vocab() and tokenizer.special_tokens == (1, 1)
    assert (tokenizer.pad_id, tokenizer.unknown_id) == (stock.pad_token_id, stock.unk_token_id)


def test_threads_share_a_tokenizer(tmp_path: Path) -> None:
    """MeCab's tagger handles one text at a time, and the tokenizers library would hang."""
    tokenizer = Tokenizer(japanese(tmp_path, "wordpiece"))
    parts = [TEXTS[i::8] for i in range(8)] * 8
    lengths = [None, 9] * 32
    expected = [tokenizer.encode(*arguments) for arguments in zip(parts, lengths, strict=True)]
    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(tokenizer.encode, parts, lengths)] == expected


def test_without_mecab_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = japanese(tmp_path)
    for module in ("unidic_lite", "fugashi"):
        monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
        with pytest.raises(CaiError, match=r"its tokenizer needs MeCab: .* -m pip install .*\[japanese\]'$"):
            Tokenizer(checkpoint)


@pytest.mark.parametrize("name", ["TapasTokenizer", "BertJapaneseTokenizer"])
def test_other_tokenizers_written_in_python_are_refused(name: str, tmp_path: Path) -> None:
    checkpoint = japanese(tmp_path)
    change(checkpoint / "tokenizer_config.json", tokenizer_class=name, subword_tokenizer_type="sentencepiece")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS[:60]), model_prefix=str(checkpoint / "spiece"), vocab_size=600, minloglevel=2
    )
    message = "its tokenizer is written in Python, without a fast version .*: choose a checkpoint that has one"
    with pytest.raises(CaiError, match=message):
        Tokenizer(checkpoint)
