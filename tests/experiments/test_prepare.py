"""The run folders, systems and collections that settings ask for."""

import json
from pathlib import Path
from typing import Any

import pytest

from cai_pyserini.core.config import load_encoder
from cai_pyserini.core.errors import CaiError
from cai_pyserini.experiments.grid import Grid
from cai_pyserini.experiments.settings import RunSettings


@pytest.mark.parametrize(
    "words, changes, passages",
    [
        (300, {}, None),
        (600, {}, 100),
        (600, {"passages": 0}, 0),
        (600, {"passages": 50}, 50),
        (600, {"systems": ["bm25"]}, None),  # which reads everything
        (600, {"systems": ["bm25", "splade"]}, 100),
        (300, {"language": "ja"}, 100),  # whose characters are pieces
    ],
)
def test_long_documents_are_searched_in_passages(
    words: int, changes: dict[str, Any], passages: int | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Unless somebody has said otherwise. The fault: words are counted, of which a Japanese text has few."""
    word = "痛風" if changes.pop("language", None) else "word "
    line = json.dumps({"_id": "d1", "text": word * words}) + "\n"
    (tmp_path / "corpus.jsonl").write_text(line)
    settings = RunSettings(collections=[str(tmp_path)], output=tmp_path / "run", **{"systems": ["joint"]} | changes)
    (cell,) = Grid(settings).cells
    run, _ = (cell.prepare().run for _ in range(2))  # as a dry run does
    assert run.experiment.collection.passages == passages
    warned = caplog.text.count("encoders would not read 57% of the text, so passages of 100 words are searched")
    assert warned == (passages == 100)


def test_runs_of_an_experiment_search_the_same_passages_or_documents(tmp_path: Path) -> None:
    """The fault: BM25 of the first encoder's passages is compared with SPLADE of whole documents."""
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"_id": "d1", "text": "word " * 400}) + "\n")
    checkpoint = load_encoder("splade-tiny").checkpoint
    (tmp_path / "short.yaml").write_text(f"checkpoint: {checkpoint}\nmax_document_length: 64\n")
    settings = RunSettings(collections=[str(tmp_path)], encoder=["splade-tiny", str(tmp_path / "short.yaml")])
    with pytest.raises(CaiError, match=r"^short: one of this and splade-tiny would search passages: set passages"):
        Grid(settings).require()
    Grid(settings.replace(passages=0)).require()


@pytest.mark.parametrize("length, remedy", [(128, " or a larger max_document_length of the encoder"), (512, "")])
def test_what_a_dense_encoder_does_not_read_is_said_once_with_the_remedy(
    length: int, remedy: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Which depends on the positions of the model. The fault: only what SPLADE does not read is said."""
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"_id": "d1", "text": "word " * 600}) + "\n")
    minilm = load_encoder("minilm").checkpoint
    (tmp_path / "short.yaml").write_text(f"checkpoint: {minilm}\nkind: dense\nmax_document_length: {length}\n")
    dense = {"systems": ["dense"], "dense": str(tmp_path / "short.yaml")}
    (cell,) = Grid(RunSettings(collections=[str(tmp_path)], passages=0, output=tmp_path / "run", **dense)).cells
    for _ in range(2):
        cell.prepare()
    lost = round(100 * (1 - length / 600))
    (message,) = [message for message in caplog.messages if "lost" in message]
    read = f"{tmp_path.name}: short reads {length} word pieces of a document, and about {lost}% of the text is lost"
    assert message == f"{read}: the setting passages (such as 100){remedy} keeps more"


@pytest.mark.parametrize("measures", [["AP"], ["nDCG@10", "AP"]])
def test_verify_measures_what_is_expected(tiny: Path, tmp_path: Path, measures: list[str]) -> None:
    """The fault: with other measures, there is nothing to verify."""
    settings = RunSettings(collections=[str(tiny)], output=tmp_path, measures=measures, verify=True)
    expected = measures if "nDCG@10" in measures else [*measures, "nDCG@10"]
    (cell,) = Grid(settings).cells
    assert cell.prepare().run.experiment.measures == expected


GERMAN = "Die Pflegeversicherung übernimmt einen Teil der Kosten für die Pflege zu Hause."
JAPANESE = "春になると花粉症の薬を飲む人が増える。くしゃみや鼻水が続く。"
VIETNAMESE = "Người bệnh cần uống nhiều nước và nghỉ ngơi để mau chóng hồi phục sức khỏe."
ENGLISH = "The patients were treated with antibiotics for an infection of the urinary tract."
DENSE = ["bm25", "bm25-grams", "bm25-grams-near-words", "dense", "fused-bm25-grams-dense-zscore"]


@pytest.mark.parametrize(
    "texts, changes, language, systems, dense",
    [
        ([ENGLISH], {}, "en", None, None),
        ([GERMAN], {}, "de", DENSE, "e5-small"),
        ([GERMAN] * 2 + [JAPANESE, ENGLISH], {}, "de+en+ja", DENSE, "e5-small"),
        ([ENGLISH] * 99 + [GERMAN], {}, "en", None, None),
        ([VIETNAMESE], {}, "vi", DENSE, "e5-small"),
        ([GERMAN], {"systems": ["bm25"]}, "de", ["bm25"], None),
        ([GERMAN], {"systems": ["bm25-near"]}, "de", ["bm25-near"], "e5-small"),
        ([GERMAN], {"dense": "minilm"}, "de", DENSE, "minilm"),
        ([GERMAN], {"language": "en"}, "en", None, None),
        ([ENGLISH], {"language": "de+ja"}, "de+ja", DENSE, "e5-small"),
        ([GERMAN], {"encoder": ["opensearch-multilingual-v1"]}, "de", None, None),
    ],
)
def test_documents_have_systems_for_their_language(
    texts: list[str],
    changes: dict[str, Any],
    language: str,
    systems: list[str] | None,
    dense: str | None,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The fault: an English encoder ranks what it cannot read."""
    caplog.set_level("INFO")
    lines = (json.dumps({"_id": f"d{n}", "text": text}) + "\n" for n, text in enumerate(texts))
    (tmp_path / "corpus.jsonl").write_text("".join(lines))
    (cell,) = Grid(RunSettings(collections=[str(tmp_path)], **changes)).cells
    assert (cell.config.language, cell.settings.systems, cell.settings.dense) == (language, systems or [], dense)
    if systems:
        plain = ", vi by Lucene's standard analyzer, which does not stem" * (language == "vi")
        chosen = f"{', '.join(systems)}{f' with {dense}' if dense else ''}{plain}"
        assert f"{chosen}; the settings language, " in caplog.text


def test_a_wrong_language_is_refused(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"_id": "d1", "text": GERMAN}) + "\n")
    with pytest.raises(CaiError, match="language: 'german' should be one of af, am, "):
        Grid(RunSettings(collections=[str(tmp_path)], language="german"))
