import pytest

from cai_pyserini.core.grams import grams, weighted_grams


@pytest.mark.parametrize(
    "text, expected",
    [
        ("Die Haustür", ["_die", "_hau", "haus", "aust", "ustu", "stur"]),
        ("ΚΑΛΟΊ, καλοί, Straße", ["_καλ", "καλο", "αλοι"] * 2 + ["_str", "stra", "tras", "rass", "asse"]),
        ("a in", ["_a", "_in"]),  # shorter words are whole
        ("x-Strahlen 2024", ["_x", "_str", "stra", "trah", "rahl", "ahle", "hlen", "_202", "2024"]),
        ("हिन्दी", ["_हिन", "हिन्", "िन्द", "न्दी"]),  # vowel signs are letters
        ("糖尿病。癌", ["糖", "尿", "病", "糖尿", "尿病", "癌"]),
        ("メモリーの管理", [*"メモリーの管理", "メモ", "モリ", "リー", "ーの", "の管", "管理"]),
        ("문서를 열기", ["_문", "문서", "서를", "를_", "_열", "열기", "기_"]),
        ("HTML을", ["_htm", "html", "_을", "을_"]),  # scripts are separate words
        ("แฟ้ม", ["_แฟ้", "แฟ้ม"]),
        ("… — '_'", []),
    ],
)
def test_the_script_says_what_the_parts_of_a_word_are(text: str, expected: list[str]) -> None:
    assert grams(text) == expected


def test_the_parts_of_a_word_of_a_query_weigh_the_root_of_their_number_together() -> None:
    """The fault: a long word of a query outweighs all others."""
    assert weighted_grams("Haus am Haus") == pytest.approx({"_hau": 2**0.5, "haus": 2**0.5, "_am": 1})
