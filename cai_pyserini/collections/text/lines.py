"""What office documents have in common in any format: lines and cells, the font Symbol, fields and labels."""

import re

SHOWN_FIELD = re.compile(r"\s*(EQ|MACROBUTTON\s+\w+)\b")  # fields whose instruction has the text that is shown
SYMBOL_FIELD = re.compile(r"\s*SYMBOL\s+(\d{1,5})\b[^\0]*\\f\s*\W?Symbol\b[^\0]*$")
SWITCH = re.compile(r"\\\w+|[(),;]")
LABEL = re.compile(r"\w{2,}")  # text in the format of a list's numbers
FILE_NAME = re.compile(r"\S*\.\w{2,5}\s*$|\w:\\")  # a description that is only the picture's file
LONG_CELL = 300  # characters
SYMBOLS = {  # of the font Symbol
    **dict(enumerate("ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ", ord("A"))),
    **dict(enumerate("αβχδεφγηιϕκλμνοπθρστυϖωξψζ", ord("a"))),
    **dict(zip(b"\xa3\xa5\xae\xb0\xb1\xb3\xb4\xb5\xb7\xb9\xbb\xd6\xe5\xf2", "≤∞→°±≥×∝•≠≈√∑∫", strict=True)),
}
PRIVATE_USE = {0xF000 + code: character for code, character in SYMBOLS.items()}  # Word and PowerPoint write these


def symbol(code: int) -> str:
    """A character of the font Symbol."""
    code = code & 0xFF if 0xF000 <= code <= 0xF0FF else code
    return SYMBOLS.get(code, "" if 0x80 <= code <= 0xFF else chr(code))


def ended_line(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"


def in_cell(text: str) -> str:
    """The text of a cell, on one line unless it is long, as in a table that only puts columns side by side."""
    text = text.strip()
    return " ".join(filter(str.strip, text.split("\n"))) if len(text) <= LONG_CELL else text


def without_empty_cells(text: str) -> str:
    return "\n".join("\t".join(filter(str.strip, line.rstrip().split("\t"))) for line in text.split("\n"))


def shown_by_field(instruction: str) -> str:
    """The text in the instruction of a field that has no result."""
    if found := SYMBOL_FIELD.match(instruction):
        return symbol(int(found[1]))
    shown = SHOWN_FIELD.match(instruction)
    return " ".join(SWITCH.sub(" ", instruction[shown.end() :]).split()) if shown else ""
