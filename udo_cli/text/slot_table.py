"""The table of a node's slots, as `udo top` and the demo show it."""

from __future__ import annotations

from typing import Any

from udo_cli.text import output

COLUMNS = (
    "SLOT",
    "VERSION",
    "IN/S",
    "OUT/S",
    "EVENTS",
    "ERRORS",
    "DEAD",
    "DEPTH",
    "P50 MS",
    "P99 MS",
    "BUSY",
    "CPU",
    "RESIDENT",
    "RESTARTS",
)


def cells(s: dict[str, Any]) -> tuple[str, ...]:
    """The cells of one slot, in the order of COLUMNS."""
    return (
        f"{s['deployment']}:{s['slot']}",
        s["version"],
        f"{s['in_per_s']:,.0f}",
        f"{s['out_per_s']:,.0f}",
        f"{s['events_in']:,}",
        f"{s['errors']:,}",
        f"{s['dead_letters']:,}",
        str(s["depth_frames"]),
        f"{s['p50_ms']:.2f}",
        f"{s['p99_ms']:.2f}",
        f"{100 * s['busy_share']:.0f} %",
        f"{s['cpu_percent']:.0f} %",
        output.size(s["rss_bytes"]),
        str(s["restarts"]),
    )


def drawn(slots: list[dict[str, Any]]) -> Any:
    """The table, for rich."""
    return output.grid(COLUMNS, map(cells, slots), texts=2)
