"""Which words are split into pieces, compared with the trainer's own counts."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer

from cai_pyserini.analysis.coverage import Coverage, Word, measure, plot, savings, split
from cai_pyserini.cli.analyse import main
from cai_pyserini.collections.beir_folder import BeirFolder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.trainer import wordpiece

COUNTS = {"cancer": 6, "phosphorylation": 2, "12345": 9, "tumours": 3, "血圧": 1, ",": 40}
PHOSPHORYLATION = ["ph", "##os", "##ph", "##ory", "##lation"]


@pytest.fixture(scope="module")
def backend(checkpoint: Path) -> Backend:
    return AutoTokenizer.from_pretrained(checkpoint).backend_tokenizer


@pytest.fixture(scope="module")
def words(backend: Backend) -> list[Word]:
    return split(COUNTS, backend)


def test_coverage_worked_example(words: list[Word]) -> None:
    """Words with a letter, sorted by saving."""
    assert words == [
        Word("phosphorylation", 2, PHOSPHORYLATION),
        Word("tumours", 3, ["tu", "##mour", "##s"]),
        Word("cancer", 6, ["cancer"]),
        Word("血圧", 1, ["[UNK]"]),
    ]
    assert [word.saving for word in words] == [8, 6, 0, 0]
    assert measure(words, "[UNK]") == Coverage(
        occurrences=12,
        words=4,
        pieces_per_occurrence=(2 * 5 + 3 * 3 + 6 + 1) / 12,
        covered_occurrences=6 / 12,
        covered_words=1 / 4,
        unknown_occurrences=1 / 12,
    )
    assert savings(words) == [8 / 26, 14 / 26]


def test_pieces_and_savings_are_the_trainers(tiny: Path, backend: Backend) -> None:
    counts = wordpiece.count_words((document.contents for document in BeirFolder(tiny, "tiny").documents()), backend)
    base, unknown = wordpiece.vocabulary_of(backend, "splade-tiny")
    letters = Counter({word: count for word, count in counts.items() if any(map(str.isalpha, word))})

    def pieces(vocabulary: dict[str, int]) -> int:
        occurrences = np.array(list(letters.values()))
        return int(wordpiece.frequencies(list(letters), occurrences, vocabulary, unknown).sum())

    words = split(counts, backend)
    assert {word.text: word.occurrences for word in words} == letters
    assert sum(len(word.pieces) * word.occurrences for word in words) == pieces(base)
    for number in (1, 5, 20):
        added = {word.text: len(base) + i for i, word in enumerate(words[:number])}
        assert 1 - pieces(base | added) / pieces(base) == pytest.approx(savings(words)[number - 1])


def test_many_pieces_share_the_last_bar() -> None:
    axes = plot([Word("cancer", 3, ["cancer"]), Word("x" * 9, 1, ["x"] * 9)], "").axes[0]
    assert [bar.get_height() for bar in axes.patches] == [0.75, 0, 0, 0, 0, 0, 0, 0.25]
    assert plot([Word("cancer", 3, ["cancer"])], "").axes[0].patches[0].get_height() == 1  # nothing to save


def test_the_command(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--collection", str(tiny), "--encoder", "splade-tiny", "--top", "2", "--output", str(tmp_path / "out")]
    main(["coverage", *arguments])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:4]] == [
        ["word", "occurrences", "pieces", "saving", "split"],
        ["-" * len(lines[0])],
        ["korpergroße", "1", "6", "5", "ko", "##rp", "##er", "##gr", "##o", "##ße"],
        ["falciparum", "1", "5", "4", "fa", "##lc", "##ip", "##aru", "##m"],
    ]
    # unknown: 血 and 圧, two words to BERT's pre-tokenizer
    assert lines[5:8] == [
        "138 occurrences of 99 distinct words; 1.43 pieces per word",
        "in the vocabulary: 77.5% of the occurrences, 71.7% of the distinct words; unknown: 1.45% of the occurrences",
        "pieces saved by adding words: 26: 29.9%",
    ]
    data = json.loads((tmp_path / "out" / "coverage.json").read_text())
    assert data["coverage"]["unknown_occurrences"] == 2 / 138
    assert data["savings"] == {"26": (197 - 138) / 197}  # nothing is left to save
    assert data["top"][1] == {"text": "falciparum", "occurrences": 1, "pieces": ["fa", "##lc", "##ip", "##aru", "##m"]}
    assert (tmp_path / "out" / "coverage.png").read_bytes().startswith(b"\x89PNG")


def test_a_collection_without_words_is_refused(tmp_path: Path) -> None:
    (tmp_path / "numbers").mkdir()
    (tmp_path / "numbers" / "corpus.jsonl").write_text('{"_id": "a", "text": "1, 2; 3"}\n')
    arguments = ["--collection", str(tmp_path / "numbers"), "--encoder", "splade-tiny"]
    with pytest.raises(CaiError, match="collection numbers has no words"):
        main(["coverage", *arguments, "--output", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
