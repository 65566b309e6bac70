"""Output of commands: results on stdout, progress on stderr, JSON for scripts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


# Control characters are shown as Python writes them, except line ends and tabs.
_CONTROLS = {n: f"\\x{n:02x}" for n in (*range(32), *range(127, 160)) if chr(n) not in "\n\t"}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


def emit(document: Any) -> None:
    """Print one JSON document to stdout, indented on a terminal."""
    click.echo(json.dumps(document, default=_plain, indent=2 if sys.stdout.isatty() else None))


def say(text: str) -> None:
    """Print one line of progress to stderr."""
    click.echo(click.style(text, dim=True) if sys.stderr.isatty() else text, err=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], empty: str) -> None:
    """Print a table to stdout; if it has no rows, the text `empty`."""
    from rich.console import Console

    shown = grid(columns, rows)
    if not shown.row_count:
        click.echo(empty)
        return
    wide = {} if sys.stdout.isatty() else {"width": 200}
    Console(**wide, highlight=False).print(shown)  # type: ignore[arg-type]


def grid(columns: Sequence[str], rows: Iterable[Sequence[Any]], texts: int | None = None) -> Table:
    """A table for a console; its first `texts` columns (None: all) are texts, the others numbers."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold")
    for n, name in enumerate(columns):
        made.add_column(cell(name), overflow="fold", justify="left" if texts is None or n < texts else "right", no_wrap=texts is not None)
    for row in rows:
        made.add_row(*map(cell, row))
    return made


def cell(value: Any) -> Text:
    """A value as plain text, whatever its source: nothing in it acts as an instruction to the console or the terminal."""
    from rich.text import Text

    return Text("" if value is None else str(value).translate(_CONTROLS))


def short(digest: str | None) -> str:
    """The first 12 digits of a digest."""
    return (digest or "").removeprefix("sha256:")[:12]


def some(names: Sequence[str], most: int = 10) -> str:
    """The first `most` names, and the number of further ones."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def size(count: float) -> str:
    """A number of bytes as text, such as 1.5 MiB."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
