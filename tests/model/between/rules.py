"""The rules for a key group that moves to a slot of another node, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from tests.model.rules import rule


@dataclass(frozen=True)
class Rules:
    """All on: the complete protocol."""

    noted: bool = rule("The cut is on A's disk before it is made; else A's next queue server takes frames of a group that A gave away.")
    kept: bool = rule("A keeps what it handed over until B has adopted it; else B's restart while it is copied loses the group.")
    once: bool = rule("B notes in the same step what was delivered; else a manager that starts again brings old values back.")
    opened: bool = rule("B takes frames by the newer map only behind what was delivered; else it begins the group anew.")
    restored: bool = rule("B's next queue server is told the newer map from B's disk; else producers wait for ever.")
    end_at_each: bool = rule("END goes to A as well, behind its handover; else nobody notices that A's queue was lost before that.")

    def without(self, name: str) -> Rules:
        """The same rules with one off."""
        return replace(self, **{name: False})


WHY = {f.name: str(f.metadata["why"]) for f in fields(Rules)}
