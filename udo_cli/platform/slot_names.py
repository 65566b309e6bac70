"""Names of slots for people: the number that `udo status` shows, or, over nodes, NODE:SLOT."""

from __future__ import annotations

from udo_protocol.errors import UsageError


def parsed(text: str, option: str) -> tuple[str, int]:
    """(node, number); the node is '' if only the number is given."""
    node, _, number = text.rpartition(":")
    if not number.isdecimal() or text.startswith(":"):
        raise UsageError(f"{option}: expected the number of a slot, or NODE:NUMBER for a slot on that node, got {text!r}")
    return node, int(number)


def shown(node: str, number: int) -> str:
    """The name of the slot with this number on this node."""
    return f"{node}:{number}" if node else str(number)
