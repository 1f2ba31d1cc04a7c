"""Bytes to characters, as browsers decode them."""

import codecs


def decoded(data: bytes, charset: str | None = None) -> str:
    try:
        return data.decode(charset or encoding_of(data), errors="replace")
    except LookupError:  # an unknown charset
        return data.decode(encoding_of(data), errors="replace")


def is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def encoding_of(data: bytes) -> str:
    """The encoding of a text that does not name one; as browsers assume, if it is not Unicode."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    return "utf-8-sig" if is_utf8(data) else "cp1252"
