"""Tables for a terminal and for Markdown. The first row is the header; the first column is left-aligned."""

from collections.abc import Sequence

Rows = Sequence[Sequence[str]]


def aligned(rows: Rows) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    header, *body = [
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join([header, "-" * len(header), *body])


def markdown(rows: Rows) -> str:
    header, *body = ["| " + " | ".join(cell.strip() for cell in row) + " |" for row in rows]
    return "\n".join([header, "|---" + "|---:" * (len(rows[0]) - 1) + "|", *body])
