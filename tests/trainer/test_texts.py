"""Corpora of all kinds, read as texts."""

import gzip
from pathlib import Path

import pytest

from cai_pyserini.core.errors import CaiError
from cai_pyserini.trainer.texts import texts


def test_collections_text_files_and_jsonl_files(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one two three\n\nfour\n")
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as file:
        file.write('{"title": "T", "text": "five six seven"}\n{"text": "eight"}\n')
    files = [str(tmp_path / "a.txt"), str(tmp_path / "b.jsonl.gz")]
    assert list(texts(files)) == ["one two three", "four", "T five six seven", "eight"]
    assert list(texts(files, min_words=3)) == ["one two three", "T five six seven"]
    assert len(list(texts([str(tiny)]))) == 12
    with pytest.raises(CaiError, match="no text of at least 5 words in"):
        list(texts(files, min_words=5))
    with pytest.raises(CaiError, match=r"no file .*/c.txt"):
        list(texts([str(tmp_path / "c.txt")]))
    (tmp_path / "d.jsonl").write_text('{"text": "x"}\n{"title": "y"}\n')
    with pytest.raises(CaiError, match=r"d.jsonl:2: expected an object with text as strings"):
        list(texts([str(tmp_path / "d.jsonl")]))
    (tmp_path / "e.jsonl").write_text('{"title": null, "text": "x"}\n{"title": 7, "text": "x"}\n')
    with pytest.raises(CaiError, match=r"e.jsonl:2: title and text must be strings"):
        list(texts([str(tmp_path / "e.jsonl")]))
