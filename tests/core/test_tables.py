"""Printed tables, and figures."""

from pathlib import Path

from cai_pyserini.core import figures, tables

ROWS = [["system", "nDCG@10", "ms"], ["bm25", "0.6789", "5"], ["splade-idf", "0.65", "10.25"]]


def test_a_table_for_a_terminal() -> None:
    assert tables.aligned(ROWS).splitlines() == [
        "system      nDCG@10     ms",
        "--------------------------",
        "bm25         0.6789      5",
        "splade-idf     0.65  10.25",
    ]


def test_a_table_for_markdown() -> None:
    assert tables.markdown(ROWS).splitlines() == [
        "| system | nDCG@10 | ms |",
        "|---|---:|---:|",
        "| bm25 | 0.6789 | 5 |",
        "| splade-idf | 0.65 | 10.25 |",
    ]


def test_a_figure_is_a_png(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "a.png"
    lines = {"train": ([1, 2], [3.0, 1.0]), "test": ([1, 2], [4.0, 2.0])}
    figures.plot_lines(path, "step", "loss", lines)
    assert [path.name for path in path.parent.iterdir()] == ["a.png"]
    assert path.read_bytes().startswith(b"\x89PNG\r\n")
