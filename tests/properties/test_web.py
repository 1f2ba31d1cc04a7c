"""Pages, mails and e-books with a marked word wherever people can write: each is in the text, or said to be left out.

The faults: an empty plain part hides the HTML; the text after an image, a forwarded mail, the fallback of an object, and
everything after an empty <title/>, a bad byte, or 256 nested elements is gone without a word.
"""

import base64
import io
import os
import quopri
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cai_pyserini.collections import file_text
from cai_pyserini.collections.formats import Text
from cai_pyserini.core.isolated import Failed

Read = Callable[[str, bytes], Text]
MARK = re.compile(r"\bmark\d+x\b")

# Where people write; each {} becomes a marked word.
IN_BODY = (
    "<p>{}</p>{}<div>a <b>{}</b> c</div>",
    "<pre>  x\n    {}</pre>",
    "<table><caption>{}</caption><tr><td>{}<th>{}<tfoot><tr><td>{}</table>",
    "<table><tr><td><table><tr><td>{}</table><td><p>{}<p>{}</table>",
    "<table>{} <tr>{} <td>{}</table>",
    "<ul><li>{}<ul><li>{}</ul><li><p>{}</ul><ol start=7><li>{}</ol><dl><dt>{}<dd>{}</dl>",
    "<textarea placeholder='{}'>a <b> {}</textarea>",
    "<select><optgroup label='{}'><option>{}<option label='{}'>x</select><datalist><option value=x>{}</datalist>",
    "<button title={}>{}</button><input value={}><input type=submit value='{}'><input type=email placeholder={}>",
    "<input type=image alt={}><fieldset><legend>{}</legend><label>{}</label> <output>{}</output></fieldset>",
    "<progress>{}</progress><meter>{}</meter><details><summary>{}</summary>{}</details><dialog>{}</dialog>",
    "<img alt={} title={}><map><area alt='{}'></map><abbr title='a {} b'>x</abbr><i aria-label='{}'></i>",
    "<figure><img alt={}><figcaption>{}</figcaption></figure>",
    "<noscript>{}<img alt={}></noscript><noembed><p>{}</p></noembed>",
    "<iframe srcdoc='&lt;p&gt;{}&lt;iframe srcdoc=&quot;{}&quot;>&lt;/iframe>'></iframe><iframe><p>{}</p></iframe>",
    "<svg><title>{}</title><desc>{}</desc><text>{}<tspan>{}</tspan></text><foreignObject>{}</foreignObject></svg>",
    "<svg><text><![CDATA[{}]]></text><style>x</style><script>y</script><g/><text>{}</text></svg>",
    "<math alttext={}><mi>{}</mi><mo>=</mo><mtable><mtr><mtd>{}</mtd></mtr></mtable><annotation>{}</annotation></math>",
    "<ruby>{}<rp>(</rp><rt>{}</rt><rp>)</rp></ruby> <del>{}</del> <ins>{}</ins>",
    "<div hidden>{}</div><div style='display:none'>{}</div><center>{}</center>",
    "<object data=x>{}</object><video><source src=y><track label={}>{}</video><audio>{}</audio><canvas>{}</canvas>",
    "<embed src=x>{}<my-element>{}</my-element><my-element>{}</my-element>",
    "<template shadowrootmode=open>{}</template><xmp><b> {}</xmp><listing>{}</listing>",
    "<a href=x>{}</a> <a name=y/>{} <a id='z'/>{}<div/>{}<title/>{}<script src='x'/> <i>{}</i>",
    "<h1>{}</h1><h3>{}</h3><header><h2>{}</h2></header><footer>{}</footer><aside>{}</aside><main>{}</main>",
    "<div class=menu><p>{} with words</p><a href=x>y</a></div><p>{}<ul><li><a href=x>{}</a><li><a href=y>{}</a></ul>",
    "&#{}; {} &unknown; {} <? x ?>{}</p></i></div>{}",
)
AROUND = (
    *("<div>{}</div>", "<table><tr><td>{}</td></tr></table>", "<ul><li>{}", "<p><font color=red>{}", "{}<!-- -->"),
    *(
        "<form>{}</form>",
        "<details open>{}</details>",
        "<blockquote>{}",
        "<b><i>{}",
        "<section class='page'>{}</section>",
    ),
    *("<font>" * 300 + "{}", "<div>" * 3000 + "{}", "<my-box>{}</my-box>", "<span dir=rtl>{}</span>"),
)
IN_HEAD = (
    "<title>{}</title>",
    "<title>{} " + "long " * 60 + "{}</title>",
    "<title>{} and Node.js</title>",
    "<meta name=description content='{}'><meta content={} name=Keywords><meta property='og:description' content={}>",
    "<title>x</title><title>{}</title>",
)
NOT_TEXT = (
    *("<!-- {} -->", "<script>{}</script>", "<style>{}</style>", "<template>{}</template>", "<nav>{}</nav>"),
    *("<div role=navigation>{}</div>", "<div class='main nav'>{}</div>", "<input type=hidden value={}>"),
    *("<footer class=page><a href=x>{}</a></footer>", "<h4>x<a class=headerlink title={} href=x>¶</a></h4>"),
    "<ul class='side-menu'><li><a href=x>{}</a></ul>",
)
BODY = "<p>" + "A page has more text than navigation, or else its navigation is its text. " * 9


class Marks:
    """Numbers marked words."""

    def __init__(self) -> None:
        self.made: set[str] = set()

    def fill(self, template: str) -> str:
        def mark() -> str:
            self.made.add(f"mark{len(self.made)}x")
            return f"mark{len(self.made) - 1}x"

        return re.sub(r"\{\}", lambda _: mark(), template)


def marked(text: Text) -> set[str]:
    return {*MARK.findall(f"{text.title} {text.text}")}


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Read:
    """Read a file of a format."""
    path = tmp_path_factory.mktemp("read") / "file"

    def read(format: str, data: bytes) -> Text:
        path.write_bytes(data)
        text = file_text.read_file((os.fsencode(path), format))[1]
        assert isinstance(text, Text), text
        return text

    return read


places = st.tuples(st.sampled_from(IN_BODY), st.lists(st.sampled_from(AROUND), max_size=3))


@given(
    head=st.lists(st.sampled_from(IN_HEAD), max_size=2),
    body=st.lists(places, min_size=1, max_size=12),
    end=st.sampled_from(
        [
            "",
            "</body></html>",
            "<plaintext>{}<b>",
            "</html>{}</body> {}<html><head><title>{}</title><body>{}",
            "<noframes><p>{}",
        ]
    ),
)
def test_every_marked_word_of_a_page_is_read(read: Read, head, body, end) -> None:
    marks = Marks()
    parts = []
    for template, around in body:
        for each in around:
            template = each.replace("{}", template)
        parts.append(marks.fill(template))
    page = "<!doctype html><html><head>" + "".join(map(marks.fill, head)) + BODY + "".join(parts) + marks.fill(end)
    text = read("html", page.encode())
    assert marks.made - marked(text) == set(), page[:3000]


@pytest.mark.parametrize("template", NOT_TEXT)
def test_what_is_not_text_is_not_read(read: Read, template: str) -> None:
    """The faults: scripts, comments and menus are found, and menus outrank the pages they lead to."""
    marks = Marks()
    page = BODY + marks.fill(f"<p>{{}}</p>{template}<p>{{}}</p>") + BODY
    assert marks.made - marked(read("html", page.encode())) == {"mark1x"}


def test_frames_have_no_body(read: Read) -> None:
    page = "<html><head><title>x</title></head><frameset><frame src=a><noframes><body>{}<p>{}</noframes></frameset>"
    marks = Marks()
    assert marked(read("html", marks.fill(page).encode())) == marks.made
