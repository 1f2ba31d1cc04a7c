"""Pseudo queries: their kinds, and their bounds."""

import random
import re
from collections import Counter

from cai_pyserini.trainer.pseudo_queries import passage, pseudo_queries, questions, remainder

WORDS = [f"word{number}" for number in range(60)]


def test_each_document_makes_queries_of_every_kind() -> None:
    titles = ["Three word title"] * 50
    found = list(pseudo_queries(titles, [f"Three word title {' '.join(WORDS)}"] * 50, random.Random(1)))
    kinds = Counter(query.kind for query in found)
    assert kinds["title"] == kinds["span"] == kinds["phrases"] == 50
    assert 30 < kinds["dropped"] < 50  # now and then nothing is dropped
    assert {query.text for query in found if query.kind == "title"} == {"Three word title"}
    assert all(5 <= len(query.text.split()) <= 12 for query in found if query.kind == "span")
    assert all(2 <= len(query.text.split()) <= 5 for query in found if query.kind == "phrases")


def test_a_query_is_at_most_a_third_of_its_document() -> None:
    """Also without titles and punctuation, where a sentence would be the whole document."""
    documents = [" ".join(WORDS[:length]) for length in range(31)]
    for query in pseudo_queries([""] * 31, documents, random.Random(1)):
        assert 1 <= 3 * len(query.text.split()) <= query.document
        assert query.kind != "title"
    found = list(pseudo_queries(["all of it"], ["all of it and more"], random.Random(1)))
    assert "title" not in {query.kind for query in found}
    assert list(pseudo_queries(["", " "], ["", "one two"], random.Random(1))) == []


def test_phrases_are_rare_words_in_the_order_of_the_document() -> None:
    common = ["the", "of", "and", "in", "with", "for"]
    documents = [" ".join(common * 3 + [f"rare{number}", f"seldom{number}"]) for number in range(40)]
    found = [query for query in pseudo_queries([""] * 40, documents, random.Random(1)) if query.kind == "phrases"]
    rare = sum(word not in common for query in found for word in query.text.split())
    assert rare > 30  # of 2 words in 20, where chance would draw about 14
    for query in found:
        both = [word for word in query.text.split() if word not in common]
        assert both == sorted(both)


def test_questions_are_about_words_that_say_something() -> None:
    text = "The kidney filters the blood, and of the bones it is the marrow that makes it."
    (about,) = {query.document for query in questions([1] * 30, ["", text], random.Random(1))}
    assert about == 1
    found = [query.text for query in questions([1] * 30, ["", text], random.Random(1))]
    query_words = {" ".join(word for word in query.split() if word in text.lower()) for query in found}
    assert len(set(found)) > 10 and any("kidney" in query for query in query_words)
    assert all(re.search("kidney|filters|blood|bones|marrow|makes", query) for query in found)
    assert list(questions([0], ["of the"], random.Random(1))) == []


def test_a_remainder_is_a_document_without_the_query() -> None:
    text = "Shortness of breath. Breath is short (very short)."
    assert remainder(text, "Breath is short") == "Shortness of breath.   (very short)."  # the passage, once
    assert remainder(text, "short breath") == "Shortness of is (very"  # or the words, wherever they are
    assert remainder(text, "nothing of it") == "Shortness breath. Breath is short (very short)."


def test_a_passage_has_most_of_the_words_of_the_query() -> None:
    long = " ".join(f"word{number}" for number in range(300))
    assert passage(long, "word200 Word210.").split() == [f"word{number}" for number in range(175, 245)]
    assert passage(long, "word299").split()[-1] == "word299"  # the last words are in a passage, too
    assert passage(long, "word5 word250").split()[0] == "word0"  # ties keep the earlier passage
    assert passage("a short text", "words of another") == "a short text"
    assert passage("", "word") == ""
