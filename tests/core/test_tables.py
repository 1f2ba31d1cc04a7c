"""Tables, as they are printed."""

from cai_pyserini.core import tables

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


def test_a_header_alone_is_a_table() -> None:
    assert tables.aligned([["a", "b"]]) == "a  b\n----"
    assert tables.markdown([["a", "b"]]) == "| a | b |\n|---|---:|"
