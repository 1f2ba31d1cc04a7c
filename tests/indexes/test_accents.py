"""Plain spellings of words, and how much variants count."""

import math

import pytest

from cai_pyserini.core.config import Language
from cai_pyserini.indexes.accents import Variants, plain_spellings

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
    ("Łódź", "pl"): ["lodz"],
    ("ёлка", "ru"): ["елка"],
    ("ά", "en"): ["α"],
    ("οδός", "en"): ["οδοσ"],
    ("qurʾān", "en"): ["quran"],
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


@pytest.mark.slow
def test_a_variant_counts_half_as_much_as_the_word_at_most(java: None) -> None:
    frequencies = {"cafe": 30, "café": 3, "cafè": 60, "résumé": 9, "ma": 9, "má": 9, "mà": 9, "şi": 9, "și": 9}
    accented = [f"w:{word}" for word in frequencies if not word.isascii()]
    variants = Variants(accented, "w:", "en", 90, lambda w: frequencies.get(w[2:], 0))
    rare = 0.5 * math.log1p(90 / 30) / math.log1p(90 / 3)  # not worth more than the word
    assert variants.of("cafe") == {"café": pytest.approx(rare), "cafè": 0.5}
    assert variants.of("café") == {"cafe": 0.5}
    assert variants.of("resum") == {"résumé": 1}  # no document has the word itself; stems depend on accents
    assert variants.of("ma") == {"má": 0.5, "mà": 0.5} and variants.of("má") == {"ma": 0.5}
    assert variants.of("și") == {"şi": 0.5}
    assert variants.of("fever") == {}
    assert variants.added({"w:ma": 9, "w:má": 5, "ma": 2}) == {"w:mà": 4}
