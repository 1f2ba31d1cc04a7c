"""Tables for a terminal, in Markdown, LaTeX and CSV. The first row is the header; the first column is left-aligned."""

import csv
import io
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

Format = Literal["text", "markdown", "latex", "csv"]
LATEX = {
    **{character: rf"\{character}" for character in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": "$<$", ">": "$>$", "|": r"\textbar{}", "−": "$-$", "±": r"$\pm$", "†": r"$\dagger$", "α": r"$\alpha$"},
    **{"–": "--", "—": "---", "…": r"\ldots{}", "Δ": r"$\Delta$", "‡": r"$\ddagger$", '"': r"\textquotedbl{}"},
}


class Cell(NamedTuple):
    """A cell that is emphasized if it is the best of its column; `mark` is superscript: a dagger, or letters."""

    text: str
    best: bool = False
    mark: str = ""


type Rows = Sequence[Sequence[str | Cell]]


def render(rows: Rows, format: Format, caption: str = "") -> str:
    """A table, with everything escaped that its format gives a meaning. `caption` is not shown in CSV.

    LaTeX needs the package booktabs.
    """
    table = [[Cell(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    return {"text": _text, "markdown": _markdown, "latex": _latex, "csv": _csv}[format](table, caption)


def aligned(rows: Rows) -> str:
    return render(rows, "text")


def markdown(rows: Rows) -> str:
    return render(rows, "markdown")


def marked(scores: Sequence[float], marks: Sequence[str] = ()) -> list[Cell]:
    """A column of scores. Those that round to the same 4 digits tie for the best."""
    top = max(round(score, 4) for score in scores)
    marks = marks or [""] * len(scores)
    return [Cell(f"{score:.4f}", round(score, 4) == top, mark) for score, mark in zip(scores, marks, strict=True)]


def _text(table: list[list[Cell]], caption: str) -> str:
    columns = []
    for place, column in enumerate(zip(*table, strict=True)):
        width = max(len(cell.mark) for cell in column)
        cells = [f"{'*' if cell.best else ''}{cell.text}{cell.mark.ljust(width)}" for cell in column]
        width = max(map(len, cells))
        columns.append([cell.rjust(width) if place else cell.ljust(width) for cell in cells])
    header, *body = ["  ".join(cells) for cells in zip(*columns, strict=True)]
    return "\n".join([header, "-" * len(header), *body, *([caption] if caption else [])])


def _markdown(table: list[list[Cell]], caption: str) -> str:
    def cell(cell: Cell) -> str:
        text = re.sub(r"[\\|*`\[\]]|<(?=[A-Za-z/!?])", r"\\\g<0>", " ".join(cell.text.split()))
        mark = f"<sup>{cell.mark}</sup>" if cell.mark.isalpha() else cell.mark
        return f"**{text}**{mark}" if cell.best else f"{text}{mark}"

    header, *body = ["| " + " | ".join(map(cell, row)) + " |" for row in table]
    lines = [header, "|---" + "|---:" * (len(table[0]) - 1) + "|", *body]
    return "\n".join([*lines, "", caption] if caption else lines)


def _latex(table: list[list[Cell]], caption: str) -> str:
    def cell(cell: Cell) -> str:
        text = latex(re.sub(r"^-(?=[\d.])", "−", cell.text))
        return (rf"\textbf{{{text}}}" if cell.best else text) + (
            rf"\textsuperscript{{{latex(cell.mark)}}}" if cell.mark else ""
        )

    header, *body = ["    " + " & ".join(map(cell, row)) + r" \\" for row in table]
    tabular = [
        rf"  \begin{{tabular}}{{l{'r' * (len(table[0]) - 1)}}}",
        *(r"    \toprule", header, r"    \midrule", *body, r"    \bottomrule"),
        r"  \end{tabular}",
    ]
    above = [r"\begin{table}", r"  \centering", rf"  \caption{{{latex(caption)}}}"]
    return "\n".join(["% \\usepackage{booktabs}", *above, *tabular, r"\end{table}"])


def latex(text: str) -> str:
    """Text with everything escaped that LaTeX gives a meaning."""
    return "".join(LATEX.get(character, character) for character in " ".join(text.split()))


def _csv(table: list[list[Cell]], caption: str) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([cell.text for cell in row] for row in table)
    return file.getvalue().rstrip("\n")
