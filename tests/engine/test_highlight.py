"""Snippets have the words that make the score."""

import pytest

from cai_pyserini.engine.explanation import Explanation
from cai_pyserini.engine.highlight import Marked, marked, word_strengths
from cai_pyserini.engine.highlight import snippet as snippet_and_pages
from cai_pyserini.indexes.searcher import Term

TERMS = [Term("bone", 1, 1, None, 9, 4.0), Term("##s", 1, 1, None, 1, 1.0), Term("leg", 1, 1, None, 1, -0.5)]


def snippet(*arguments) -> Marked:
    return snippet_and_pages(*arguments)[0]


def text_of(pieces: list[tuple[str, float]]) -> str:
    return "".join(piece for piece, _ in pieces)


def test_a_word_is_as_strong_as_its_best_term() -> None:
    terms_of = {"Bones": ["bone", "##s"], "s": ["##s"], "legs": ["leg"], "of": []}
    explanation = Explanation("x", "d", 1, 4.5, None, TERMS, [])
    empty = Explanation("y", "d", 1, 0.5, None, [], [])
    strengths = word_strengths("Bones of s legs", [explanation, empty], lambda system, word: terms_of[word])
    assert strengths == {"Bones": 1.0, "of": 0.0, "s": 0.25, "legs": 0.0}
    assert marked("(Bones) legs", strengths) == [("(", 0.0), ("Bones", 1.0), (") ", 0.0), ("legs", 0.0), ("", 0.0)]


def test_a_short_text_is_shown_whole_and_in_one_line() -> None:
    assert text_of(snippet("One\n two, three.", {})) == "One two, three."
    assert snippet("", {}) == [("", 0.0)]


def test_a_snippet_has_the_strongest_words() -> None:
    filler = "so it is " * 30
    strengths = {"bone": 1.0, "fracture": 0.5}
    shown = snippet(f"bone {filler}a fracture of a bone, {filler}bone bone bone", strengths, 60)
    assert "fracture of a bone" in text_of(shown) and ("bone", 1.0) in shown
    assert text_of(shown).startswith("… ") and text_of(shown).endswith(" …")
    assert len(text_of(shown)) <= 60 + 4


@pytest.mark.parametrize(("place", "before"), [(0, range(1)), (50, range(5, 40)), (99, range(85, 100))])
def test_words_are_shown_with_what_is_before_and_after(place: int, before: range) -> None:
    """The fault: the only match is the last word of the snippet."""
    words = [f"w{number:02}" for number in range(100)]
    shown = text_of(snippet(" ".join(words), {words[place]: 1.0}, 100))
    assert shown.index(words[place]) in before and 90 < len(shown) <= 104


def test_form_feeds_are_counted_up_to_the_first_match() -> None:
    """The fault: a hit is said to be on the page where its snippet begins, or where a run of empty pages begins."""
    text = "one\n\f" + "two " * 80 + "\n" + "\f" * 100 + " three bone\n\ffour"
    assert snippet_and_pages(text, {"bone": 1.0})[1] == 101
    assert "\f" not in text_of(snippet(text, {"bone": 1.0}))
    assert snippet_and_pages("one\n\ftwo", {})[1] == 0


@pytest.mark.parametrize("strengths", [{}, {"word2": 1.0}])
def test_a_snippet_is_the_beginning_where_nothing_later_is_stronger(strengths: dict[str, float]) -> None:
    text = " ".join(f"word{number}" for number in range(100))
    assert text_of(snippet(text, strengths, 40)) == "word0 word1 word2 word3 word4 word5 …"


def test_text_without_spaces_or_words_is_cut() -> None:
    assert text_of(snippet("x" * 50 + " y", {}, 10)) == "x" * 50 + " …"  # but no word is
    assert text_of(snippet("-" * 3000, {})) == " … "
    assert text_of(snippet(f"one{'-' * 3000}two{'=' * 3000}", {})) == "one … two … "
    explanation = Explanation("x", "d", 1, 1.0, None, [Term("痛", 1, 1, None, 1, 1.0)], [])
    text = "无" * 3000 + "痛风" + "无" * 3000
    shown = text_of(snippet(text, word_strengths(text, [explanation], lambda system, word: list(word))))
    assert len(shown) <= 240 + 4 and "痛" in shown
    assert shown.startswith("… 无") and shown.endswith("无 …")


@pytest.mark.parametrize(
    "text, words",
    [
        ("Größere Häuser, e\u0301tude", ["Größere", "Häuser", "e\u0301tude"]),
        ("春になるとビタミンを飲みます。", ["春になると", "ビタミンを", "飲みます"]),
        ("भारत की किताबें", ["भारत", "की", "किताबें"]),  # vowel signs belong to words
    ],
)
def test_words_of_other_scripts(text: str, words: list[str]) -> None:
    assert [*word_strengths(text, [], lambda system, word: [])] == words
