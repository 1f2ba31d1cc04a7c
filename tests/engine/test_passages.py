"""The best passage of a long text, wherever it is, without analyzing the text."""

import random

import pytest

from cai_pyserini.engine.highlight import LONG, beginnings, best_snippet, occurrences, snippet, words_that_may_match
from cai_pyserini.engine.reasons import best_passage, words_of

FILLER = "So it is said, and said again. "


def stems(text: str) -> list[str]:
    """Of a toy language: `studies` and `study` are `studi`, and `Häuser` is `haus`."""
    of_word = {"study": "studi", "studies": "studi", "häuser": "haus"}
    return [of_word.get(word.lower(), word.lower()) for word in words_of(text) if word.lower() != "of"]


@pytest.mark.parametrize(
    ("query", "passage"),
    [
        ("studies of bones", "A Study of Bones."),  # by stems
        ("Häuser", "Alte HÄUSER."),  # by the word, because its stem begins with other letters
        ("高血圧", "血圧が高血圧で"),
    ],
)
@pytest.mark.parametrize("place", [0, 0.01, 0.5, 1])
def test_a_match_anywhere_is_found(query: str, passage: str, place: float) -> None:
    """The faults: only the beginning is looked at; capital letters or an İ, whose small form is longer, shift it."""
    fillers = [FILLER] * 3000
    fillers.insert(int(place * len(fillers)), passage + " ")
    for text in ("".join(fillers), "İ" * 300 + " " + "".join(fillers)):
        analyze = stems if query.isascii() or "Hä" in query else lambda part: [q for q in ("高血",) if q in part]
        assert passage.rstrip(".") in best_passage(text, query, analyze)


def test_the_passage_is_the_best_of_the_whole_text() -> None:
    """The fault: a place with fewer words of the query is preferred, or its ends cut words."""
    draw = random.Random(1)
    strengths = {"bone": 1.0, "fracture": 0.7, "of": 0.1, "hip": 0.4}
    words = [*strengths, *(f"word{n}" for n in range(2000))]
    for _ in range(20):
        text = " ".join(draw.choices(words, k=6000))
        expected, _ = snippet(text, strengths)
        found, _ = best_snippet(text, lambda part: strengths, lambda: beginnings(strengths, {}))
        assert sum(dict(found).values()) == pytest.approx(sum(dict(expected).values()))
        assert {piece for piece, _ in found[1::2]} <= {*words}
        assert found[0][0] in ("", "… ") and found[-1][0] in ("", " …")


def test_little_of_a_long_text_is_analyzed_and_pages_are_counted() -> None:
    analyzed = ""

    def strengths_of(part: str) -> dict[str, float]:
        nonlocal analyzed
        analyzed += part
        return {"bone": 1.0}

    text = f"bones \f{FILLER * 5000}\f\fa bone\f{FILLER * 5000}"
    pieces, page_breaks = best_snippet(text, strengths_of, lambda: {"bone": 1.0})
    assert ("bone", 1.0) in pieces and page_breaks == 3 and len(analyzed) < LONG < len(text)
    assert words_that_may_match(text, lambda: {"bone": 1.0}).split() in (["bones", "bone"], ["bone", "bones"])
    nothing, page_breaks = best_snippet(text, strengths_of, dict)
    assert nothing[1][0] == "bones" and page_breaks == 0


def test_words_begin_so_but_in_scripts_without_spaces_they_contain_it() -> None:
    assert occurrences("Bone, carbon bones ١bone", ["bon"]) == {"bon": [0, 13]}
    assert occurrences("高い血圧と血圧", ["血圧"]) == {"血圧": [2, 5]}
