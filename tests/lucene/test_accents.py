"""Plain spellings of words, and how much variants count."""

import pytest

from cai_pyserini.core.config import Language
from cai_pyserini.lucene.accents import Variants, plain_spellings

PLAIN: dict[tuple[str, Language], list[str]] = {
    ("müller", "en"): ["muller", "mueller"],
    ("müller", "fr"): ["muller"],  # ü is ue in some languages only
    ("größe", "de"): ["grosse", "groesse"],
    ("smørrebrød", "da"): ["smorrebrod", "smoerrebroed"],
    ("ångström", "sv"): ["angstrom", "aangstroem"],
    ("œuvre", "fr"): ["oeuvre"],
    ("niño", "es"): ["nino"],
    ("ışık", "tr"): ["isik"],
    ("đặng", "en"): ["dang"],
    ("łódź", "pl"): ["lodz"],
    ("ёлка", "ru"): ["елка"],
    ("ά", "en"): ["α"],
    ("שָׁלוֹם", "en"): ["שלום"],
    ("מ״מ", "en"): ['מ"מ'],
    ("مُحَمَّد", "en"): ["محمد"],
    # marks that make other letters
    ("майка", "ru"): ["майка"],
    ("київ", "uk"): ["київ"],
    ("が", "ja"): ["が"],
    ("किताब", "hi"): ["किताब"],
    ("น้ำ", "th"): ["น้ำ"],
    ("한국", "ko"): ["한국"],
}


@pytest.mark.parametrize(("word", "language"), PLAIN)
def test_plain_spellings(word: str, language: Language) -> None:
    assert plain_spellings(word, language) == PLAIN[word, language]


def test_a_variant_counts_half_as_much_as_the_word_at_most() -> None:
    idf = {"cafe": 2.0, "café": 4.0, "cafè": 1.0, "résumé": 3.0, "ma": 1.0, "má": 1.0, "mà": 1.0}
    stems = {"resume": ["resum"], "cafe": ["cafe"], "ma": ["ma"], "a": []}
    variants = Variants(
        ["café", "cafè", "résumé", "má", "mà"],
        "en",
        lambda texts: [stems[text] for text in texts],
        lambda w: idf.get(w, 0),
    )
    assert variants.of("cafe") == {"café": 0.25, "cafè": 0.5}  # a rare variant is not worth more than the word
    assert variants.of("café") == {"cafe": 0.5}
    assert variants.of("resum") == {"résumé": 1}  # no document has the word itself; stems depend on accents
    assert variants.of("ma") == {"má": 0.5, "mà": 0.5} and variants.of("má") == {"ma": 0.5}
    assert variants.of("fever") == {}
