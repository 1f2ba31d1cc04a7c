def test_pseudo_queries_are_titles_and_sentences() -> None:
    titles = ["A title", "", "Other"]
    texts = ["Too short. One sentence of five words. Nor this.", "Another sentence of five words?", ""]
    found = list(pseudo.pseudo_queries(titles, texts, random.Random(0)))
    assert found == [
        (0, "A title"), (0, "One sentence of five words."), (1, "Another sentence of five words?"), (2, "Other")
    ]  # fmt: skip


def test_pseudo_examples_have_their_document_and_others(tiny: Path, tmp_path: Path) -> None:
    config, encoder = load_index_config(str(tiny)), load_encoder("splade-tiny")
    count = pseudo.write_examples(config, encoder, tmp_path / "x.jsonl", 100, 2, random.Random(1), "cpu")
    lines = json_lines(tmp_path / "x.jsonl")
    assert len(lines) == count > 10
    for line in lines:
        assert line["query"] in line["positive"]
        assert len({line["positive"], *line["negatives"]}) == 3
