"""The text of mails."""

import base64
import email
import re
from collections.abc import Iterable
from contextlib import suppress
from email.errors import HeaderParseError
from email.header import Header, decode_header
from email.message import Message
from email.utils import parsedate_to_datetime

from cai_pyserini.collections.formats import NO_TITLE, TITLE_LENGTH, LeftOut, Text, Unreadable
from cai_pyserini.collections.text.charset import decoded
from cai_pyserini.collections.text.rtf import read_rtf
from cai_pyserini.collections.text.web import html_text

HEADERS = ("From", "To", "Cc", "Bcc", "Date", "Organization", "Keywords", "Comments")
HTML = {"application/xhtml+xml", "text/html", "text/x-amp-html"}
RTF = {"application/rtf", "text/rtf"}
CALENDAR = {"application/ics", "text/calendar"}
MAILS = {"message/global", "message/news", "message/rfc822"}
WITHOUT_TEXT = ("audio", "font", "image", "video")
SIGNATURES = {"application/pgp-signature", "application/pkcs7-signature", "application/x-pkcs7-signature"}
OF_OUTLOOK = {"application/ms-tnef", "application/vnd.ms-tnef"}
SEALED = {"application/pkcs7-mime", "application/x-pkcs7-mime"}
ENCODED_WORDS = re.compile(r"=\?[^?]*\?[BbQq]\?[^?]*\?=(?:\s*=\?[^?]*\?[BbQq]\?[^?]*\?=)*")
FOLD = re.compile(r"\r?\n[ \t]")
PGP = re.compile(r"-----BEGIN PGP MESSAGE-----.*?(?:-----END PGP MESSAGE-----|\Z)", re.DOTALL)
EVENT = re.compile(
    r"(?im)^(SUMMARY|DESCRIPTION|LOCATION|ATTENDEE|ORGANIZER|COMMENT|CONTACT|CATEGORIES|DTSTART|DTEND|DUE|URL)"
    r"((?:;(?:\"[^\"\n]*\"|[^\":\n])*)?):(.*)$"
)
COMMON_NAME = re.compile(r"(?i);CN=\"?([^\";]+)")
ESCAPED = re.compile(r"\\(.)")
WORD = re.compile(r"\w+")


def read_mail(data: bytes) -> Text:
    message = email.message_from_bytes(data.removeprefix(b"\xef\xbb\xbf").lstrip())
    for part in message.walk():
        _repair(part)
    subject, headers = _header(message["Subject"]), _headers(message, HEADERS)
    if not headers and not subject:
        raise Unreadable("is not a mail: it has no headers")
    if len(subject) > TITLE_LENGTH or NO_TITLE.match(subject):
        headers += _headers(message, ["Subject"])
    names = [_header(name) for part in message.walk() if (name := part.get_filename())]
    attached = [f"Attachments: {', '.join(names)}"] if names else []
    left_out = LeftOut()
    text = _text(message, left_out)
    modified = None
    with suppress(OverflowError, ValueError):
        modified = parsedate_to_datetime(_header(message["Date"])).date().isoformat()
    return Text(subject, "\n".join([*headers, *attached, "", text]), modified=modified, left_out=left_out.said())


def _repair(part: Message) -> None:
    """Decode what the parser does not: headers that say what a part is, and a mail in a mail in Base64."""
    for name in ("Content-Type", "Content-Disposition"):
        if isinstance(part[name], Header):
            part.replace_header(name, _header(part[name]))
    if encoding := str(part["Content-Transfer-Encoding"] or "").split():
        part.replace_header("Content-Transfer-Encoding", encoding[0].strip(";"))
    if encoding[:1] == ["base64"] and part.get_content_maintype() == "message" and part.is_multipart():
        with suppress(ValueError):
            inner = [each.get_payload() for each in part.get_payload() if isinstance(each, Message)]
            content = base64.b64decode("".join(map(str, inner)))
            part.set_payload([email.message_from_bytes(content)])


def _headers(message: Message, names: Iterable[str]) -> list[str]:
    return [f"{name}: {_header(value)}" for name in names for value in message.get_all(name, []) if value]


def _header(value: str | Header | None) -> str:
    """A header without encoded words; if it has bytes that are not ASCII, or escapes of ISO-2022-JP, as the characters
    that they are."""
    if isinstance(value, Header):
        value = decoded(b"".join(chunk for chunk, _ in decode_header(value)))
    elif value and "\x1b$" in value:
        value = decoded(value.encode())
    return FOLD.sub(" ", ENCODED_WORDS.sub(_words, value or "")).strip()


def _words(encoded: re.Match[str]) -> str:
    try:
        return "".join(decoded(chunk, charset) for chunk, charset in decode_header(encoded[0]))
    except HeaderParseError:
        return encoded[0]


def _text(part: Message, left_out: LeftOut) -> str:
    """The text of a part and the parts in it; counts in `left_out` what else might have text."""
    kind = part.get_content_type()
    if kind == "multipart/encrypted" or kind in SEALED:
        signed = "signed" in str(part.get_param("smime-type"))
        left_out["signed part*" if signed else "encrypted part*"] += 1
    elif kind in OF_OUTLOOK:
        left_out["winmail.dat part*"] += 1
    elif part.is_multipart():
        parts = [each for each in part.get_payload() if isinstance(each, Message)]
        texts = [_text(each, left_out) for each in parts]
        if part.get_content_maintype() == "message":
            texts = [
                "\n".join([*_headers(each, _names(kind, each)), "", text])
                for each, text in zip(parts, texts, strict=True)
            ]
        return _fullest(texts) if kind == "multipart/alternative" else "\n\n".join(filter(None, texts))
    elif kind in HTML | RTF | CALENDAR or part.get_content_maintype() in ("message", "multipart", "text"):
        try:
            return _decoded(part, kind, left_out)
        except Unreadable:
            left_out["broken part*"] += 1
    elif kind not in SIGNATURES and part.get_content_maintype() not in WITHOUT_TEXT:
        left_out["attachment*"] += 1
    return ""


def _names(kind: str, message: Message) -> Iterable[str]:
    """The headers to read: of a report, such as on the delivery of a mail, they are all there is."""
    return ("Subject", *HEADERS) if kind in MAILS else dict.fromkeys(message.keys())


def _decoded(part: Message, kind: str, left_out: LeftOut) -> str:
    """The text of a part without parts."""
    content, label = part.get_payload(decode=True), part.get_content_charset()
    if not isinstance(content, bytes):
        return ""
    if kind in HTML:
        title, text = html_text(content, label)
        return text if title.strip() in text else f"{title}\n\n{text}"
    if kind in RTF:
        read = read_rtf(content)
        left_out[f"part* without {', '.join(read.left_out)}"] += bool(read.left_out)
        return read.text
    text = decoded(content, label).replace("\f", "\n")
    if "\0" in text:
        left_out["attachment*"] += 1
        return ""
    if kind in CALENDAR:
        return "\n".join(map(_event, EVENT.finditer(FOLD.sub("", text))))
    if str(part.get_param("delsp")).lower() == "yes":  # lines that end in a space go on, without it
        text = re.sub(r"(?<!^--) \r?\n", "", text, flags=re.MULTILINE)
    text, encrypted = PGP.subn("", text)
    left_out["encrypted part*"] += encrypted
    return text


def _event(field: re.Match[str]) -> str:
    """A line for a property of a calendar, with the name of a person."""
    name, parameters, value = field.groups()
    person = COMMON_NAME.search(parameters)
    value = ESCAPED.sub(lambda escaped: "\n" if escaped[1] in "nN" else escaped[1], value.strip())
    return f"{name.capitalize()}: {person[1] + ' ' if person else ''}{value}"


def _fullest(texts: list[str]) -> str:
    """The first of alternatives that has most of their words, and then the lines with words that only others have."""
    words = [set(WORD.findall(text.casefold())) for text in texts]
    best = next((i for i, each in enumerate(words) if 2 * len(each) >= max(map(len, words))), 0)
    lines, seen = texts[best : best + 1], words[best] if words else set()
    for text in texts[:best] + texts[best + 1 :]:
        for line in text.splitlines():
            if new := set(WORD.findall(line.casefold())) - seen:
                lines.append(line)
                seen |= new
    return "\n".join(lines)
