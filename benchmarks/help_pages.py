"""Make a collection of LibreOffice's help in one of its languages: a document is a page, a query an entry of the
keyword index, which the writers of the help assign to pages. Pages of which less than three tenths of the letters, and
entries of which less than half are of the language's script are left out, as they are not translated; so are pages with
many function words of English, of which the help in some languages has up to a half.

    apt-get download libreoffice-help-ko
    dpkg-deb -x libreoffice-help-ko_*.deb help
    python benchmarks/help_pages.py help/usr/share/libreoffice/help/ko --script Hangul --output data/help-ko
"""

import html
import random
import re
from pathlib import Path

import harness
import regex
from lxml import html as pages

from cai_pyserini.collections.contract import Record

QUERIES, SEED = 1500, 0
SHORTEST = 100  # characters of a page
MOST_PAGES = 5  # of an entry
ENTRY = re.compile(r'\{url:"[^"/]+/([^"?]+)[^"]*", app:"[^"]*", text:"((?:[^"\\]|\\.)*)"\}')
ENGLISH = re.compile(r"\b(?:the|of|to|and|is|for|with|that|or|you)\b")
MOST_ENGLISH = 0.1  # share of these words
BLOCKS = ("br", "p", "li", "h1", "h2", "h3", "td", "th", "div")


def page(path: Path) -> tuple[str, str]:
    """The title and text of a page, without the pages that it embeds."""
    root = pages.parse(str(path)).getroot()
    title, body = (root.findtext(".//title") or "").strip(), root.get_element_by_id("DisplayArea", None)
    if body is None:
        return title, ""
    for element in body.xpath('.//*[contains(@class, "embedded")] | .//script | .//img'):
        element.drop_tree()
    for element in body.iter(*BLOCKS):
        element.tail = f" {element.tail or ''}"
    return title, " ".join(body.text_content().split()).removeprefix(title).strip()


def main() -> None:
    parser = harness.output_of(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--script", default="L", help="Unicode script, such as Hangul; default: letters of any")
    args = parser.parse_args()
    own = regex.compile(rf"\p{{{args.script}}}")

    def is_translated(text: str, share: float) -> bool:
        letters = len(regex.findall(r"\p{L}", text))
        return letters > 0 and len(own.findall(text)) >= share * letters

    def is_english(text: str) -> bool:
        return len(ENGLISH.findall(text.lower())) > MOST_ENGLISH * len(text.split())

    found = {str(path.relative_to(args.folder)): page(path) for path in sorted(args.folder.glob("text/**/*.html"))}
    unique = {text: name for name, (_, text) in found.items() if len(text) >= SHORTEST and is_translated(text, 0.3)}
    if not args.folder.name.startswith("en"):
        unique = {text: name for text, name in unique.items() if not is_english(text)}
    records = [Record("", name, found[name][0], text) for text, name in unique.items()]
    names, bearers = {*unique.values()}, dict[str, dict[str, int]]()
    for name, entry in ENTRY.findall((args.folder / "bookmarks.js").read_text()):
        text = " ".join(html.unescape(entry.replace('\\"', '"')).replace("--", " ").split())
        if name in names and is_translated(text, 0.5):
            bearers.setdefault(text, {})[name] = 1
    entries = [text for text, pages_of in sorted(bearers.items()) if len(pages_of) <= MOST_PAGES]
    sample = random.Random(SEED).sample(entries, min(QUERIES, len(entries)))
    topics = {f"q{number}": text for number, text in enumerate(sample, 1)}
    harness.write_folder(args.output, records, topics, {"test": {id: bearers[text] for id, text in topics.items()}})


if __name__ == "__main__":
    main()
