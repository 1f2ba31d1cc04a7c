"""The text of mails."""

import email
import email.policy
from email.message import EmailMessage

from cai_pyserini.collections.formats import Text, Unreadable
from cai_pyserini.collections.text.archive import day_text
from cai_pyserini.collections.text.charset import decoded
from cai_pyserini.collections.text.web import html_text


def read_mail(data: bytes) -> Text:
    message = email.message_from_bytes(data, policy=email.policy.default)
    body = message.get_body(("plain", "html")) if isinstance(message, EmailMessage) else None
    content = body.get_payload(decode=True) if body else None
    text = ""
    if body and isinstance(content, bytes):
        is_html = body.get_content_subtype() == "html"
        text = html_text(content)[1] if is_html else decoded(content, body.get_content_charset())
    names = [name for part in message.walk() if (name := part.get_filename())]
    headers = [f"{name}: {message[name]}" for name in ("From", "To", "Cc", "Date") if message[name]]
    if not headers and not message["Subject"]:
        raise Unreadable("is not a mail: it has no headers")
    attached = [f"Attachments: {', '.join(names)}"] if names else []
    sent = getattr(message["Date"], "datetime", None)
    return Text(
        str(message["Subject"] or ""), "\n".join([*headers, *attached, "", text]), modified=sent and day_text(sent)
    )
