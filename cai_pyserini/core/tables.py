"""Tables for a terminal, in Markdown, LaTeX and CSV. The first row is the header; the first column is left-aligned."""

import csv
import io
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

Format = Literal["text", "markdown", "latex", "csv", "tsv"]
LATEX = {
    **{character: rf"\{character}" for character in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": "$<$", ">": "$>$", "|": r"\textbar{}", "−": "$-$", "±": r"$\pm$", "†": r"$\dagger$", "α": r"$\alpha$"},
    **{"–": "--", "—": "---", "…": r"\ldots{}", "Δ": r"$\Delta$", "‡": r"$\ddagger$", '"': "''"},
}


class Cell(NamedTuple):
    """A cell that is emphasized if it is the best of its column; `mark` is superscript: a dagger, or letters."""

    text: str
    best: bool = False
    mark: str = ""


type Rows = Sequence[Sequence[str | Cell]]
type Columns = dict[str, Sequence[str | Cell]]  # by their headers


def render(rows: Rows, format: Format, caption: str = "") -> str:
    """A table, with everything escaped that its format gives a meaning. CSV and TSV have no caption.

    LaTeX needs the package booktabs.
    """
    table = [[Cell(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    match format:
        case "text":
            return _text(table, caption)
        case "markdown":
            return _markdown(table, caption)
        case "latex":
            return _latex(table, caption)
    return _csv(table, "," if format == "csv" else "\t")


def in_rows(columns: Columns) -> Rows:
    return [[*columns], *zip(*columns.values(), strict=True)]


def aligned(rows: Rows) -> str:
    return render(rows, "text")


def markdown(rows: Rows) -> str:
    return render(rows, "markdown")


def marked(scores: Sequence[float], marks: Sequence[str] = ()) -> list[Cell]:
    """A column of scores. Those that round to the same 4 digits tie for the best; of one, none is."""
    top = max(round(score, 4) for score in scores) if len(scores) > 1 else None
    marks = marks or [""] * len(scores)
    return [Cell(f"{score:.4f}", round(score, 4) == top, mark) for score, mark in zip(scores, marks, strict=True)]


def _text(table: list[list[Cell]], caption: str) -> str:
    columns = []
    for place, column in enumerate(zip(*table, strict=True)):
        marks = [f" {cell.mark}" if cell.mark.isalpha() else cell.mark for cell in column]
        texts = [f"*{cell.text}" if cell.best else cell.text for cell in column]
        widths = [max(map(len, each)) for each in (texts, marks)]
        padded = [text.rjust(widths[0]) if place else text.ljust(widths[0]) for text in texts]
        columns.append([f"{text}{mark.ljust(widths[1])}" for text, mark in zip(padded, marks, strict=True)])
    header, *body = ["  ".join(cells) for cells in zip(*columns, strict=True)]
    return "\n".join([header, "-" * len(header), *body, *([caption] if caption else [])])


def _markdown(table: list[list[Cell]], caption: str) -> str:
    def cell(cell: Cell) -> str:
        text = re.sub(r"[\\|*`]|\](?=[\[(:])|<(?=[A-Za-z/!?])", r"\\\g<0>", " ".join(cell.text.split()))
        mark = f"<sup>{cell.mark}</sup>" if cell.mark.isalpha() else cell.mark
        return f"**{text}**{mark}" if cell.best else f"{text}{mark}"

    header, *body = ["| " + " | ".join(map(cell, row)) + " |" for row in table]
    lines = [header, "|---" + "|---:" * (len(table[0]) - 1) + "|", *body]
    return "\n".join([*lines, "", caption] if caption else lines)


def _latex(table: list[list[Cell]], caption: str) -> str:
    def cell(cell: Cell) -> str:
        text = latex(re.sub(r"(?<![\w-])-(?=[\d.])", "−", cell.text))
        mark = rf"\textsuperscript{{{latex(cell.mark)}}}" if cell.mark else ""
        return rf"\textbf{{{text}}}{mark}" if cell.best else f"{text}{mark}"

    header, *body = ["    " + " & ".join(map(cell, row)) + r" \\" for row in table]
    columns = [*zip(*table, strict=True)]
    is_left = [place == 0 or any(cell.mark for cell in column) for place, column in enumerate(columns)]
    lines = [
        r"% \usepackage{booktabs}",
        r"\begin{table}",
        r"  \centering",
        r"  \footnotesize\setlength{\tabcolsep}{3pt}",
        rf"  \caption{{{latex(caption)}}}",
        rf"  \begin{{tabular}}{{{''.join('l' if left else 'r' for left in is_left)}}}",
        r"    \toprule",
        header,
        r"    \midrule",
        *body,
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines)


def latex(text: str) -> str:
    """Text with everything escaped that LaTeX gives a meaning."""
    escaped = "".join(LATEX.get(character, character) for character in " ".join(text.split()))
    return escaped.replace(r"d\_z", "$d_z$")


def _csv(table: list[list[Cell]], delimiter: str) -> str:
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows([cell.text for cell in row] for row in table)
    return file.getvalue().rstrip("\n")
