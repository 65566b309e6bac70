"""The list of deployments, `udo.ls()`, and how it and an operator look in a notebook: made from a registry's replies, without requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, overload

COLUMNS = ("deployment", "operator", "version", "key", "input", "output", "nodes")
# Columns of a wide operator that a table's cell shows.
_MOST_COLUMNS = 8


@dataclass(frozen=True)
class Listed:
    """A deployment as the registry describes it; `input` and `output` are columns with their types, `nodes` each node's state."""

    deployment: str
    operator: str
    version: str
    description: str
    key: tuple[str, ...]
    input: dict[str, str]
    output: dict[str, str]
    nodes: dict[str, str]

    @classmethod
    def of(cls, told: dict[str, Any]) -> Listed:
        """From a reply of `Registry.deployment`."""
        manifest = told["manifest"]
        key = manifest.get("key") or ()
        return cls(
            told["name"],
            told["operator"],
            told["version"],
            manifest.get("description") or "",
            (key,) if isinstance(key, str) else tuple(key),
            dict(manifest["input"]),
            dict(manifest["output"]),
            {n["node"]: n["state"] for n in told["nodes"]},
        )

    def cells(self) -> tuple[str, ...]:
        """One text for each of COLUMNS."""
        nodes = ", ".join(f"{node}: {state}" for node, state in self.nodes.items()) or "none"
        return (self.deployment, self.operator, self.version, ", ".join(self.key), _some(self.input), _some(self.output), nodes)

    def _repr_html_(self) -> str:
        call = f"udo({self.deployment!r}{f', key={_key(self.key)}' if self.key else ''})(df)"
        about = f"<p>{escape(self.description)}</p>" if self.description else ""
        head = f"<p><b>{escape(self.deployment)}</b> {escape(self.operator)}@{escape(self.version)}: <code>{escape(call)}</code></p>"
        state = ", ".join(f"{node}: {state}" for node, state in self.nodes.items()) or "on no node"
        columns = _table(("input", "output"), [(_lines(self.input), _lines(self.output))])
        return f"<div>{head}{about}{columns}<p>{escape(state)}</p></div>"


class Listing(Sequence[Listed]):
    """Deployments sorted by name; printed as a table, in a notebook as an HTML table."""

    def __init__(self, listed: Iterable[Listed]) -> None:
        self._listed = tuple(sorted(listed, key=lambda d: d.deployment))

    @overload
    def __getitem__(self, at: int) -> Listed: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Listed]: ...
    def __getitem__(self, at: int | slice) -> Listed | Sequence[Listed]:
        return self._listed[at]

    def __len__(self) -> int:
        return len(self._listed)

    def __iter__(self) -> Iterator[Listed]:
        return iter(self._listed)

    def __repr__(self) -> str:
        if not self:
            return "no deployments; make one with: udo deploy OPERATOR"
        rows = [COLUMNS, *(d.cells() for d in self)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)

    def _repr_html_(self) -> str:
        if not self:
            return f"<p>{escape(repr(self))}</p>"
        return _table(COLUMNS, [tuple(escape(cell) for cell in d.cells()) for d in self])


def _some(columns: dict[str, str]) -> str:
    shown = [f"{name} {kind}" for name, kind in list(columns.items())[:_MOST_COLUMNS]]
    return ", ".join([*shown, f"and {len(columns) - _MOST_COLUMNS} more"] if len(columns) > _MOST_COLUMNS else shown)


def _lines(columns: dict[str, str]) -> str:
    return "<br>".join(f"{escape(name)} <i>{escape(kind)}</i>" for name, kind in columns.items())


def _key(key: tuple[str, ...]) -> str:
    return repr(key[0] if len(key) == 1 else list(key))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """An HTML table; the cells are HTML already, the head is plain text."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
