"""The display while the demo runs: a live table on a terminal, a line now and then elsewhere. Always on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from udo_cli.demo.stream import LiveFigures
from udo_cli.text import output

_LINE_EVERY_S = 5.0
_DRAW_EVERY_S = 0.25


# Called with each new state of the stream; shows it or skips it.
Screen = Callable[[LiveFigures], None]


class _Lines:
    def __init__(self) -> None:
        self._next_s, self._update = 0.0, ""

    def __call__(self, w: LiveFigures) -> None:
        if w.elapsed_s >= self._next_s or w.update != self._update:
            self._next_s, self._update = w.elapsed_s + _LINE_EVERY_S, w.update
            output.say(f"{w.elapsed_s:5.1f} s  {w.committed:,} of {w.rows:,} rows in {w.batches} micro-batches  {w.update}".rstrip())


class _Table:
    def __init__(self, live: Any) -> None:
        self._live, self._next_s = live, 0.0

    def __call__(self, w: LiveFigures) -> None:
        if w.elapsed_s >= self._next_s:
            self._next_s = w.elapsed_s + _DRAW_EVERY_S
            self._live.update(_drawn(w), refresh=True)


def _drawn(w: LiveFigures) -> Any:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    from udo_cli.text import output, slot_table

    rate = w.committed / w.elapsed_s if w.elapsed_s else 0.0
    facts = Table.grid(padding=(0, 2))
    facts.add_row("rows", f"{w.committed:,} of {w.rows:,}  ({w.batches} micro-batches, {rate:,.0f} events/s)")
    facts.add_row("", ProgressBar(total=w.rows, completed=w.committed, width=60))
    facts.add_row("update", output.cell(w.update or f"fraud@1 -> fraud@2 at row {w.update_at:,}"))
    return Group(facts, "", slot_table.drawn(w.slots))


@contextmanager
def screen() -> Iterator[Screen]:
    """A table if stderr is a terminal, else lines."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
        yield _Table(live)
