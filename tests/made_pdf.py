"""PDF files with a word in each place where a person can write one."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pikepdf
from pikepdf import Array, Dictionary, Name, Stream, String


@dataclass
class MadePage:
    """A page, as it is filled: its contents, annotations and bookmarks, and what its resources are."""

    pdf: pikepdf.Pdf
    content: list[str] = field(default_factory=list)
    annotations: list[pikepdf.Object] = field(default_factory=list)
    fields: list[pikepdf.Object] = field(default_factory=list)
    bookmarks: list[str] = field(default_factory=list)
    resources: Dictionary = field(default_factory=Dictionary)
    lines: int = 0

    def __post_init__(self) -> None:
        font = Dictionary(Type=Name.Font, Subtype=Name.Type1, BaseFont=Name.Helvetica, Encoding=Name.WinAnsiEncoding)
        self.resources.Font = Dictionary(F1=self.pdf.make_indirect(font))
        self.resources.XObject, self.resources.Pattern, self.resources.Properties = (Dictionary() for _ in range(3))

    def line(self, word: str, matrix: str = "1 0 0 1", before: str = "", x: int = 50) -> None:
        """A line of text with a word, below the others."""
        self.lines += 1
        self.content.append(f"q {before} BT /F1 10 Tf {matrix} {x} {760 - 14 * self.lines} Tm ({word}) Tj ET Q")

    def form(self, content: str, **more: object) -> pikepdf.Object:
        """A form XObject, such as the appearance of an annotation."""
        keys = {"Type": Name.XObject, "Subtype": Name.Form, "BBox": Array([0, 0, 300, 20]), "Resources": self.resources}
        return Stream(self.pdf, content.encode(), Dictionary(**(keys | more)))  # type: ignore[arg-type]

    def drawn(self, word: str) -> pikepdf.Object:
        return self.form(f"/Tx BMC q BT /F1 10 Tf 2 5 Td ({word}) Tj ET Q EMC")

    def annotate(self, subtype: str, seen: str | None = None, **keys: object) -> pikepdf.Object:
        """Add an annotation, in whose appearance a word is seen."""
        self.lines += 1
        y = 755 - 14 * self.lines
        made = Dictionary(Type=Name.Annot, Subtype=Name(f"/{subtype}"), Rect=Array([50, y, 350, y + 14]), F=4, **keys)  # type: ignore[arg-type]
        if seen is not None:
            made.AP = Dictionary(N=self.drawn(seen))
        self.annotations.append(self.pdf.make_indirect(made))
        return self.annotations[-1]

    def widget(self, kind: str, seen: str | None = None, **keys: object) -> None:
        name = String(f"field{id(self)}.{len(self.fields)}".replace(".", "-"))
        self.fields.append(self.annotate("Widget", seen, FT=Name(f"/{kind}"), T=name, DA=String("/F1 10 Tf"), **keys))


Where = Callable[[MadePage, str], None]


def form_object(page: MadePage, word: str) -> None:
    inner = page.form(f"BT /F1 10 Tf 50 10 Td ({word}) Tj ET")
    outer = page.form("/Inner Do", Resources=Dictionary(XObject=Dictionary(Inner=inner)))
    page.resources.XObject[f"/Form{page.lines}"] = outer
    page.lines += 1
    page.content.append(f"q 1 0 0 1 0 {755 - 14 * page.lines} cm /Form{page.lines - 1} Do Q")


def actual_text(page: MadePage, word: str) -> None:
    page.content.append(f"/Span <</ActualText ({word})>> BDC")
    page.line("drawn")
    page.content.append("EMC")


def hidden_layer(page: MadePage, word: str) -> None:
    if "/OCProperties" not in page.pdf.Root:
        group = page.pdf.make_indirect(Dictionary(Type=Name.OCG, Name=String("layer")))
        default = Dictionary(BaseState=Name.ON, OFF=Array([group]))
        page.pdf.Root.OCProperties = Dictionary(OCGs=Array([group]), D=default)
    page.resources.Properties.Layer = page.pdf.Root.OCProperties.OCGs[0]
    page.content.append("/OC /Layer BDC")
    page.line(word)
    page.content.append("EMC")


def combo_box(page: MadePage, word: str) -> None:
    options = Array([Array([String("x1"), String("other")]), Array([String("x2"), String(word)])])
    page.widget("Ch", V=String("x2"), Opt=options, Ff=1 << 17)


def list_box(page: MadePage, word: str) -> None:
    page.widget("Ch", V=Array([String("one"), String(word)]), Opt=Array([String("one"), String(word)]), Ff=1 << 21)


def child_field(page: MadePage, word: str) -> None:
    """A field whose value is in its parent, with two widgets."""
    parent = page.pdf.make_indirect(Dictionary(FT=Name.Tx, T=String(f"parent{word}"), V=String(word), Kids=Array()))
    for _ in range(2):
        kid = page.annotate("Widget", Parent=parent, DA=String("/F1 10 Tf"))
        parent.Kids.append(kid)
    page.fields.append(parent)


IN: dict[str, Where] = {
    "body": lambda page, word: page.line(word),
    "turned": lambda page, word: page.line(word, "0 1 -1 0", x=350 + 12 * page.lines),
    "upside down": lambda page, word: page.line(word, "-1 0 0 -1", x=500),
    "invisible": lambda page, word: page.line(word, before="3 Tr"),
    "off the page": lambda page, word: page.line(word, x=590),
    "form object": form_object,
    "actual text": actual_text,
    "hidden layer": hidden_layer,
    "field": lambda page, word: page.widget("Tx", word, V=String(word)),
    "undrawn field": lambda page, word: page.widget("Tx", V=String(f"first line\rsecond {word}"), Ff=1 << 12),
    "stale field": lambda page, word: page.widget("Tx", "stale", V=String(word)),
    "rich field": lambda page, word: page.widget("Tx", V=Stream(page.pdf, word.encode())),
    "combo box": combo_box,
    "list box": list_box,
    "button": lambda page, word: page.widget("Btn", word, MK=Dictionary(CA=String(word)), Ff=1 << 16),
    "child field": child_field,
    "free text": lambda page, word: page.annotate("FreeText", word, Contents=String(word), DA=String("/F1 10 Tf")),
    "undrawn text": lambda page, word: page.annotate("FreeText", Contents=String(word), DA=String("/F1 10 Tf")),
    "stamp": lambda page, word: page.annotate("Stamp", word, Name=Name.Draft),
    "caption": lambda page, word: page.annotate(
        "Line", word, Contents=String(word), Cap=True, L=Array([60, 60, 90, 90])
    ),
    "bookmark": lambda page, word: page.bookmarks.append(word),
}


def note(page: MadePage, word: str) -> None:
    made = page.annotate("Text", Contents=String(word), T=String(word), Subj=String(word))
    page.annotate("Popup", Parent=made, Contents=String(word))


def highlight(page: MadePage, word: str) -> None:
    for kind in ("Highlight", "Underline", "Squiggly", "StrikeOut", "Caret"):
        page.annotate(kind, Contents=String(word), QuadPoints=Array([50, 60, 90, 60, 50, 50, 90, 50]))


def tooltip(page: MadePage, word: str) -> None:
    page.widget("Tx", TU=String(word))
    page.annotate("Link", Contents=String(word))


def pattern(page: MadePage, word: str) -> None:
    """A pattern is decoration, like an image."""
    tile = {"PatternType": 1, "PaintType": 1, "TilingType": 1, "BBox": Array([0, 0, 99, 20]), "XStep": 99, "YStep": 20}
    drawn = Stream(page.pdf, f"BT /F1 9 Tf ({word}) Tj ET".encode(), Dictionary(**tile, Resources=page.resources))  # type: ignore[arg-type]
    page.resources.Pattern.P1 = drawn
    page.content.append("/Pattern cs /P1 scn 50 50 99 20 re f")


OUT: dict[str, Where] = {
    "note": note,
    "highlight": highlight,
    "hidden annotation": lambda page, word: setattr(page.annotate("Stamp", word), "F", 2),
    "tooltip": tooltip,
    "password": lambda page, word: page.widget("Tx", V=String(word), Ff=1 << 13),
    "pattern": pattern,
}


def attached_note(page: MadePage, word: str) -> None:
    file = Dictionary(Type=Name.Filespec, F=String(f"{word}.txt"), EF=Dictionary(F=Stream(page.pdf, word.encode())))
    page.annotate("FileAttachment", FS=page.pdf.make_indirect(file))


def xfa(page: MadePage, word: str) -> None:
    form = f"<xdp:xdp xmlns:xdp='http://ns.adobe.com/xdp/'><text>{word}</text></xdp:xdp>"
    page.pdf.Root.AcroForm = Dictionary(Fields=Array(), XFA=Stream(page.pdf, form.encode()))


def scan(page: MadePage, word: str) -> None:
    keys = {"Type": Name.XObject, "Subtype": Name.Image, "Width": 1, "Height": 1, "BitsPerComponent": 8}
    image = Stream(page.pdf, b"x", Dictionary(**keys, ColorSpace=Name.DeviceGray))  # type: ignore[arg-type]
    page.resources.XObject.Image = image
    page.content.append("q 600 0 0 800 0 0 cm /Image Do Q")


SAID: dict[str, Where] = {
    "attached file": lambda page, word: page.pdf.attachments.__setitem__(f"{word}.txt", word.encode()),
    "attached note": attached_note,
    "XFA form": xfa,
    "scan": scan,
}
PLACES = {**IN, **OUT, **SAID}


def made_pdf(
    pages: Sequence[Sequence[tuple[str | Where, str]]], rotate: int = 0, redraw: bool = True, **save: object
) -> bytes:
    """A PDF with these words, at these places of its pages, some of PLACES."""
    pdf = pikepdf.new()
    made = [MadePage(pdf) for _ in pages]
    for page, places in zip(made, pages, strict=True):
        for place, word in places:
            (PLACES[place] if isinstance(place, str) else place)(page, word)
        stream = Stream(pdf, "\n".join(page.content).encode())
        keys = {"MediaBox": Array([0, 0, 600, 800]), "Rotate": rotate, "Annots": Array(page.annotations)}
        pdf.pages.append(
            pikepdf.Page(
                pdf.make_indirect(Dictionary(Type=Name.Page, Contents=stream, Resources=page.resources, **keys))
            )
        )
    fields = [each for page in made for each in page.fields]
    if fields:
        form = Dictionary(Fields=Array(fields), NeedAppearances=redraw, DR=made[0].resources)
        if "/AcroForm" in pdf.Root:
            form.XFA = pdf.Root.AcroForm.XFA
        pdf.Root.AcroForm = pdf.make_indirect(form)
    with pdf.open_outline() as outline:
        for number, page in enumerate(made):
            outline.root += [pikepdf.OutlineItem(word, number) for word in page.bookmarks]
    pdf.save(buffer := io.BytesIO(), **save)  # type: ignore[arg-type]
    return buffer.getvalue()
