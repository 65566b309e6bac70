"""The rules that keep a keyed query correct when one of its nodes is lost, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from tests.model.rules import rule


@dataclass(frozen=True)
class Rules:
    """All on: as built."""

    every_node: bool = rule("The session's map names the disks of all nodes; else what one of them has lost in a first epoch begins anew.")
    named_first: bool = rule("A disk is named before the first event goes there; else a lost one's successor is named in its place.")
    lane_of_server: bool = rule("A lane ends with its queue server; else an attempt completes an epoch whose events were lost with it.")
    ended_at_all: bool = rule("An attempt has succeeded when every slot has ENDed it; else a lost node has nothing of a committed epoch.")

    def without(self, name: str) -> Rules:
        """The same rules with one off."""
        return replace(self, **{name: False})


WHY = {f.name: str(f.metadata["why"]) for f in fields(Rules)}
