"""Deployments whose controllers act all the time: with thresholds so low that each second's figures make them move key groups, or add
or remove slots.

Their actions are read from their journals, which must replay to the same decisions.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

from elasticity.scaling import journal
from udo_protocol.errors import UdoError
from udo_protocol.node.api import NodeClient

# Arguments of the node manager: it decides each second. State kept for a rollback would delay moves from a single slot.
ARGUMENTS = ("--decide-s", "1", "--rollback-window-s", "1", "--pinned-idle-s", "1")
LEAST, MOST = 1, 4
BALANCED, SCALED_OUT, SCALED_IN = "balanced by itself", "scaled out by itself", "scaled in by itself"
_TOLD = {"balance": BALANCED, "scale_out": SCALED_OUT, "scale_in": SCALED_IN}
_NERVOUS = {
    "s_out": 0.02,
    "c": 1.0,
    "u_max": 1.0,
    "token_s": 0.5,
    "capacity": 4,
    "reverse_s": 0,
    "theta": 0,
    "balance_use": 0,
    "balance_confirm": 2,
    "balance_s": 0,
    "balance_groups": 128,
    "balance_sigmas": 0,
}
CONFIG = json.dumps({"elasticity": {"mode": "auto", "policy": "accept_all", "least": LEAST, "most": MOST, "settings": _NERVOUS}})


def acted(node: NodeClient, deployments: Iterable[str]) -> tuple[Counter[str], list[str]]:
    """Return how many steps of each kind were carried out, and the faults of the journals."""
    counts, wrong = Counter[str](), list[str]()
    for name in deployments:
        for part in node.decisions(name):
            header, entries, done = journal.read_all(part.lines)
            for entry in entries:
                found = done.get(entry.number)
                counts.update(_TOLD[step.kind] for step in entry.decision.granted if found is not None and not found.error)
            wrong += [
                f"{name} {part.segment}: decision {entry.number} comes out differently" for entry, _ in journal.replay(header, entries)
            ]
    return counts, wrong


def told(node: NodeClient, deployments: Iterable[str]) -> tuple[Counter[str], list[str]]:
    """Like `acted`, for a node that may be away."""
    try:
        return acted(node, deployments)
    except UdoError as e:
        return Counter(), [f"the journals cannot be read: {e}"]
