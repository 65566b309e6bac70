"""A suite's figures as tables, for the terminal and for the docs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

# The width in characters where output is not a terminal.
_FILE_WIDTH = 160


@dataclass(frozen=True)
class Section:
    """One table: the first column names, all others hold figures or short text."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    remark: str = ""


def show(sections: Sequence[Section]) -> None:
    """Print the tables."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_FILE_WIDTH)
    for s in sections:
        table = Table(title=s.title, title_justify="left", title_style="bold")
        for i, name in enumerate(s.header):
            numbers = i > 0 and all(r[i][:1].isdigit() or r[i] in ("", "–") for r in s.rows)
            table.add_column(name, justify="right" if numbers else "left", no_wrap=numbers)
        for row in s.rows:
            table.add_row(*row)
        console.print(table)
        if s.remark:
            console.print(s.remark, style="dim")


def markdown(sections: Sequence[Section]) -> str:
    """Return the tables as Markdown."""
    parts = []
    for s in sections:
        lines = [f"**{s.title}**", "", "| " + " | ".join(s.header) + " |", "|" + "---|" * len(s.header)]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in s.rows]
        parts.append("\n".join(lines + (["", s.remark] if s.remark else [])))
    return "\n\n".join(parts)


def count(value: float) -> str:
    """Format events per second readably: 3.41 M, 512.0 K, 940."""
    if value >= 1e6:
        return f"{value / 1e6:.2f} M"
    return f"{value / 1e3:.1f} K" if value >= 1e4 else f"{value:,.0f}"
