"""Bytes to characters, as browsers decode them: the labels and tables of the WHATWG Encoding Standard."""

import codecs
import re

import charset_normalizer
import webencodings

BOMS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",  # before UTF-16, whose mark it begins with
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16le",
    codecs.BOM_UTF16_BE: "utf-16be",
}
CODECS = {  # Python's codecs with the tables of the standard, where they have other names
    **{"big5": "big5hkscs", "euc-jp": "euc_jp", "euc-kr": "cp949", "gbk": "gb18030", "ibm866": "cp866"},
    **{"iso-2022-jp": "euc_jp", "iso-8859-8-i": "iso-8859-8", "macintosh": "mac-roman", "shift_jis": "cp932"},
    **{"windows-874": "cp874", "x-mac-cyrillic": "mac-cyrillic", "x-user-defined": "latin-1"},
}
CORRECTIONS: dict[str, dict[int, int | str]] = {  # what a codec decodes otherwise than the standard
    "cp932": dict.fromkeys(range(0xF8F0, 0xF8F4), "\ufffd"),
    "euc_jp": {0x301C: "～", 0x2016: "∥", 0x2212: "－", 0xA2: "￠", 0xA3: "￡", 0xAC: "￢"},
    "koi8-u": {0x255D: "ў", 0x256C: "Ў"},
    "x-user-defined": {byte: 0xF700 + byte for byte in range(0x80, 0x100)},
}
MULTIBYTE = {"big5", "euc-jp", "euc-kr", "gb18030", "gbk", "shift_jis"}
UTF_16 = {"utf-16be", "utf-16le"}
GUESSED = ["cp1251", "koi8_r", "cp866", "cp1253", "cp1255", "cp1256", "cp874"]
GUESSED += ["cp932", "euc_jp", "gb18030", "big5hkscs", "cp949"]
HEAD = 8192  # bytes in which a page declares its encoding; browsers read on after 1,024 while they are in <head>
TAG = re.compile(
    rb"(?s)<!--.*?(?:-->|$)|<(?:meta[\s/]((?:[^>\"']|\"[^\"]*\"|'[^']*')*)|[a-z/](?:[^>\"']|\"[^\"]*\"|'[^']*')*)"
)
ATTRIBUTE = re.compile(rb"(?s)([^\s=/>]+)\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s>]+))")
IN_CONTENT = re.compile(rb"charset\s*=\s*[\"']?([^\s;\"']+)")
XML_DECLARATION = re.compile(rb"<\?xml\s[^>]*?encoding\s*=\s*[\"']([^\"']+)")
OTHER_SCRIPT = re.compile(rb"[\x80-\xff]{3,}")  # Latin script has such letters one by one
MARKUP = re.compile(rb"<[^<>]*>")
ASCII = bytes(range(0x80))
CONTROL = re.compile(r"[\0-\x08\x0e-\x1f]")
JAPANESE_MAIL = re.compile(rb"\x1b\$[@B]([!-~]*)|\x1b\(I([!-~]*)|\x1b\([BJ]")


def decoded(data: bytes, label: str | None = None, *, markup: bool = False) -> str:
    """Decode bytes by their byte order mark, by `label` or what markup declares, or by what they are.

    A label that is plainly wrong gives way to what the bytes are; a byte that cannot be decoded becomes U+FFFD.
    """
    for mark, encoding in BOMS.items():
        if data.startswith(mark):
            return _decoded(data[len(mark) :], encoding)
    declared = (label and _encoding(label)) or (_declared(data[:HEAD]) if markup else None)
    return _decoded(data, _settled(data, declared))


def _encoding(label: str) -> str | None:
    """The standard's name of an encoding, or Python's if browsers lack it; None if unknown, or of 7 bits."""
    label = label.strip("\"';, \t\r\n\f").partition("*")[0]
    try:
        b"x".decode(label, "replace")
        python = codecs.lookup(label).name
    except (LookupError, ValueError):
        python = None
    found = webencodings.lookup(label)
    return python if not found or found.name == "replacement" else found.name if python != "ascii" else None


def _declared(head: bytes) -> str | None:
    """What the head of a page or an XML declaration says."""
    labels = []
    for tag in TAG.finditer(head.lower().partition(b"<body")[0]):
        attributes = {
            each[1]: each[2] or each[3] or each[4] or b"" for each in reversed([*ATTRIBUTE.finditer(tag[1] or b"")])
        }
        content = IN_CONTENT.search(attributes.get(b"content", b""))
        if b"charset" in attributes:
            labels.append(attributes[b"charset"])
        elif content and attributes.get(b"http-equiv", b"").strip() == b"content-type":
            labels.append(content[1])
    if written := XML_DECLARATION.match(head.lstrip()):
        labels.append(written[1])
    encoding = next(filter(None, (_encoding(label.decode("latin-1")) for label in labels)), None)
    if encoding in UTF_16:  # in which these labels could not have been found
        return "utf-8"
    return "windows-1252" if encoding == "x-user-defined" else encoding


def _settled(data: bytes, declared: str | None) -> str:
    """The encoding of bytes without a byte order mark."""
    zeros = [data[start:HEAD:2].count(0) for start in (0, 1)]
    wide = "utf-16be" if zeros[0] > zeros[1] else "utf-16le"
    if (
        len(data) % 2 == 0
        and max(zeros) > len(data[:HEAD]) / 8
        and not CONTROL.search(data[:HEAD].decode(wide, "ignore"))
    ):
        return wide
    text = data.decode("utf-8", "replace")
    bad = text.count("\ufffd")
    others = len(text) - len(text.encode("ascii", "ignore"))
    if not others and (b"\x1b$B" in data or b"\x1b$@" in data):
        return "iso-2022-jp"
    if not others and declared in UTF_16:
        return "utf-8"
    if not others or (declared == "utf-8" and others >= 2 * bad):
        return declared or "utf-8"
    if others > 5 * bad and not (declared in MULTIBYTE and others < 4 and _errors(data, declared) == 0):
        return "utf-8"
    if declared in (None, "utf-8", "iso-2022-jp"):
        return _guess(data) or "windows-1252"
    if declared == "windows-1252":
        return _guess(data, at_least=0.5) or declared
    if declared in MULTIBYTE and _errors(data, declared) > 0.3:
        return _guess(data) or declared
    return declared


def _errors(data: bytes, encoding: str) -> float:
    """Bytes that cannot be decoded, per character that is not ASCII."""
    others = [character for character in _decoded(data, encoding) if not character.isascii()]
    return others.count("\ufffd") / max(1, len(others))


def _guess(data: bytes, at_least: float = 0) -> str | None:
    """The encoding of a text in another script than Latin, by how such languages look."""
    data = MARKUP.sub(b" ", data)
    runs = sum(map(len, OTHER_SCRIPT.findall(data)))
    if runs < 12 or 2 * runs < len(data.translate(None, ASCII)):
        return None
    found = charset_normalizer.from_bytes(data, threshold=0.6, cp_isolation=GUESSED).best()
    return found.encoding if found and found.coherence >= at_least else None


def _decoded(data: bytes, encoding: str) -> str:
    if encoding == "iso-2022-jp":
        data = JAPANESE_MAIL.sub(_in_euc, data)
    codec = CODECS.get(encoding, encoding)
    text = data.decode(codec, "as-browsers")
    corrections = CORRECTIONS.get(encoding) or CORRECTIONS.get(codec)
    return text.translate(corrections) if corrections else text


def _in_euc(escaped: re.Match[bytes]) -> bytes:
    """EUC-JP for what is between escapes of ISO-2022-JP."""
    kanji, kana = (bytes(byte | 0x80 for byte in part or b"") for part in escaped.groups())
    return kanji + b"".join(b"\x8e%c" % byte for byte in kana)


def _replaced(error: UnicodeError) -> tuple[str, int]:
    """What the standard has for bytes without a character in Python's codec, and where decoding goes on."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    start, first = error.start, error.object[error.start]
    second = error.object[start + 1] if start + 1 < len(error.object) else 0
    if error.encoding == "charmap":
        return chr(first) if first < 0xA0 else "\ufffd", start + 1
    if error.encoding == "gb18030" and first == 0x80:
        return "€", start + 1
    if error.encoding == "euc_jp" and 0xA1 <= first < 0xFF and 0xA1 <= second < 0xFF:  # of NEC and IBM
        row, cell = (first - 0xA1) // 2, second - (2 if first % 2 == 0 else 0x61)
        pair = bytes([row + (0x81 if row < 31 else 0xC1), cell + (first % 2 == 1 and cell >= 0x7F)])
        return pair.decode("cp932", "replace")[0], start + 2
    if error.encoding in CODECS.values():
        return "\ufffd", start + 1 + (0x80 < first < 0xFF and second >= 0x80)
    return "\ufffd", error.end


codecs.register_error("as-browsers", _replaced)
