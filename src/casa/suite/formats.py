"""Tables as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from casa.suite.tables import Cell, Column, Sheet

MISSING = "missing"


def text_of(cell: Cell, column: Column) -> str:
    """A cell as it is read: 1,234.5, 12.3%, or "missing" where a run is."""
    if cell is None:
        return MISSING if column.ours else ""
    if isinstance(cell, str):
        return cell
    if column.kind == "percent":
        return f"{100 * cell:.2f}%"
    return f"{cell:,.0f}" if cell == round(cell) else f"{cell:,.2f}"


def markdown(sheets: Sequence[Sheet], title: str, facts: Sequence[str]) -> str:
    """All tables as one Markdown text."""
    lines = [f"# {title}", "", *(f"- {fact}" for fact in facts)]
    for sheet in sheets:
        lines += ["", f"## {sheet.title}", ""]
        if sheet.rows:
            lines.append("| " + " | ".join(column.title for column in sheet.columns) + " |")
            lines.append("|" + "".join("---|" if column.kind == "text" else "---:|" for column in sheet.columns))
            for row in sheet.rows:
                cells = (text_of(cell, column) for cell, column in zip(row, sheet.columns, strict=True))
                lines.append("| " + " | ".join(cells) + " |")
            lines.append("")
        lines += [f"- {note}" if len(sheet.notes) > 1 else note for note in sheet.notes]
    return "\n".join(lines) + "\n"


def latex(sheet: Sheet) -> str:
    """One table as a tabular environment, to \\input; it needs no package."""
    kinds = "".join("l" if column.kind == "text" else "r" for column in sheet.columns)
    lines = [f"% {sheet.title}", *(f"% {note}" for note in sheet.notes), f"\\begin{{tabular}}{{{kinds}}}", "\\hline"]
    lines += [" & ".join(_escaped(column.title) for column in sheet.columns) + r" \\", "\\hline"]
    for row in sheet.rows:
        cells = (_escaped(text_of(cell, column)) for cell, column in zip(row, sheet.columns, strict=True))
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, "\\hline", "\\end{tabular}"]) + "\n"


def _escaped(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(special.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in text)


def to_csv(sheet: Sheet) -> str:
    """One table with its full numbers: fractions for percentages, an empty field where something is missing."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.title for column in sheet.columns])
    writer.writerows([["" if cell is None else cell for cell in row] for row in sheet.rows])
    return out.getvalue()
