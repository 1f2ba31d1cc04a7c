"""One Unicode form for documents, queries and metadata.

`normalized` changes how characters are written, never which: it composes letters and accents, resolves ligatures,
full-width letters and other typographic forms of the same letters, and removes invisible characters. Subscript digits
become digits, as CO₂ is typed CO2. Superscripts, fractions, and circled and letter-like symbols stay, because x² is not
x2. So does the full-width punctuation of Chinese and Japanese, except inside words and numbers of ASCII.
"""

import re
import unicodedata
from itertools import chain

import regex

APOSTROPHES = "\xb4\u2018\u2019\u201b\u02bb\u02bc\uff07"  # ´ ‘ ’ ‛ ʻ ʼ ＇; neither primes nor the Hebrew geresh
HYPHENS, NO_BREAK_SPACES = "\u2010\u2011", "\xa0\u2007\u202f"
# Not Thai's SARA AM, whose two forms its dictionaries know, and not the parenthesized and dotted numbers.
COMPATIBLE = (
    (0xB5, 0xB5), (0x132, 0x133), (0x13F, 0x140), (0x149, 0x149), (0x17F, 0x17F), (0x1C4, 0x1CC),  # µ ĳ ŀ ŉ ſ ǆ
    (0x1F1, 0x1F3), (0x3D0, 0x3D6), (0x3F0, 0x3F5), (0x587, 0x587),  # ǳ, variants of Greek letters, և
    (0x2080, 0x2089), (0x2160, 0x217F), (0x2E9F, 0x2E9F), (0x2EF3, 0x2FD5), (0x32FF, 0x33FF),  # ₂ Ⅳ, radicals, ㌔ ㎏ ㍻
    (0xFB00, 0xFDFF), (0xFE70, 0xFEFC),  # ligatures, presentation forms of Hebrew and Arabic letters
    (0xFF10, 0xFF19), (0xFF21, 0xFF3A), (0xFF41, 0xFF5A), (0xFF61, 0xFFDC), (0xFFE0, 0xFFEE),  # full and half width
    (0x1D400, 0x1D7FF),  # bold, italic and other letters of mathematics
)  # fmt: skip
# Marks of direction, fillers and other characters without a width.
INVISIBLE = "\u034f\u061c\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164\ufeff\uffa0"
SOFT_HYPHEN = re.compile("\xad(?:[ \t]*\r?\n[ \t]*)?")  # at the end of a line, it joins the lines
SEPARATED = r"\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"  # scripts in which zero-width spaces separate words
UNSPACED_SCRIPTS = rf"\p{{Han}}\p{{Hiragana}}\p{{Katakana}}{SEPARATED}"  # without spaces between words
JOINED = regex.compile(rf"[{UNSPACED_SCRIPTS}\p{{Hangul}}]")  # letters of scripts that join words, or words and endings
ZERO_WIDTH_SPACE = regex.compile(rf"(?<![\u200b{SEPARATED}])\u200b++|\u200b++(?![{SEPARATED}])")
# Joiners mean something in Arabic and Indic scripts and between emoji, and nothing between these characters.
UNJOINED = r"\p{Latin}\p{Greek}\p{Cyrillic}\p{Armenian}\p{Georgian}\p{Hebrew}\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}"
NO_MARK = rf"[[{UNJOINED}]&&\p{{L}}]|[\p{{N}}\p{{P}}\p{{Z}}\s]"
JOINER = regex.compile(rf"(?V1)(?<=^|{NO_MARK})[\u200c\u200d]+(?=$|{NO_MARK})")
# Accents and vowel points; not the marks that make other letters in Cyrillic, Japanese, Thai and Indic scripts.
ACCENTS = regex.compile(
    r"(?<=[\p{Latin}\p{Greek}])\p{Mn}+|(?<=[аеиоуыэюяіє])[\u0300\u0301]+|(?<=е)\u0308"
    r"|[\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u064b-\u065f\u0670]+"
)
LETTERS = str.maketrans({
    "ß": "ss", "æ": "ae", "œ": "oe", "ø": "o", "đ": "d", "ð": "d", "ħ": "h", "ı": "i", "ł": "l", "þ": "th", "ŧ": "t",
    "\u02be": "", "\u02bf": "", "ς": "σ",  # Arabic letters in transliterations (Qurʾān, ʿAbd)
    "\u05f3": "'", "\u05f4": '"',  # the Hebrew geresh and gershayim
})  # fmt: skip
WIDE = re.compile("[\uff01-\uff5e](?<=[0-9A-Za-z].)(?=[0-9A-Za-z])")  # punctuation; letters have been resolved


def normalized(text: str) -> str:
    """A text in the form that is indexed, stored, encoded, searched for and compared; normalizing twice changes
    nothing."""
    if text.isascii():
        return text
    text = SOFT_HYPHEN.sub("", text)
    for replaced in _REPLACED:
        text = replaced.sub(lambda match: _REPLACEMENTS.get(match[0], ""), text)
    text = unicodedata.normalize("NFC", text)
    for meaningless in (ZERO_WIDTH_SPACE, JOINER) if _ZERO_WIDTH.search(text) else ():
        text = unicodedata.normalize("NFC", meaningless.sub("", text))
    return WIDE.sub(lambda match: chr(ord(match[0]) - 0xFEE0), text)


def without_accents(text: str) -> str:
    """A text in lower case without accents and vowel points, and with plain letters in place of others."""
    if text.isascii():
        return text.lower()
    bare = ACCENTS.sub("", unicodedata.normalize("NFD", text.lower())).translate(LETTERS)
    return unicodedata.normalize("NFC", bare)


def _replacements() -> dict[str, str]:
    found = dict.fromkeys(APOSTROPHES, "'") | dict.fromkeys(HYPHENS, "-") | dict.fromkeys(NO_BREAK_SPACES, " ")
    for character in map(chr, chain.from_iterable(range(first, last + 1) for first, last in COMPATIBLE)):
        kind, *codes = unicodedata.decomposition(character).split() or [""]
        if kind == "<square>":  # one step, which keeps the exponent of ㎡
            found[character] = "".join(chr(int(code, 16)) for code in codes)
        elif (resolved := unicodedata.normalize("NFKC", character)) != character and resolved[0] != " ":
            found[character] = resolved.replace("\u02bc", "'")
    return found


_REPLACEMENTS = _replacements()
# Apart, because a class with characters beyond the Basic Multilingual Plane is matched 50 times slower.
_BASIC = "".join(character for character in _REPLACEMENTS if character < "\U00010000")
_REPLACED = re.compile(f"[{re.escape(_BASIC)}{INVISIBLE}]"), re.compile("[\U0001d400-\U0001d7ff\U000e0100-\U000e01ef]")
_ZERO_WIDTH = re.compile("[\u200b-\u200d]")
