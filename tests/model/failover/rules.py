"""The rules of replication and failover, each with its reason. Without a rule the model shows what goes wrong."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from tests.model.rules import rule


@dataclass(frozen=True)
class Rules:
    """All on: the protocol as it is (docs/design/replicas.md)."""

    replicated: bool = rule("END is answered only when every replica of the owner's configuration holds it; Spark will not repeat it.")
    fence: bool = rule("Who was told of a version refuses replication under an older one; else a cut-off owner goes on ENDing.")
    undo: bool = rule("Undo travels with the values; the attempt whose END reached a replica may still fail and be repeated there.")
    owner_first: bool = rule(
        "A new replica counts only once the owner has acknowledged the configuration that names it, and copied what it had ENDed; "
        "else the owner answers ENDs that the replica, already counted on, has not got."
    )
    incarnation: bool = rule("A node that comes back without its disk is somebody else; else an empty disk counts as a replica.")
    drop_by_version: bool = rule("A replica is given up by a new version only; an owner tired of waiting may be the one that is cut off.")
    one_more: bool = rule(
        "A drained owner hands over once two replicas hold the group; else it removes what it had, and the new owner, which is the only "
        "one that is left, is lost."
    )
    report: bool = rule("With no holder left the group is reported; begun anew, it would answer as if it had seen nothing.")

    def without(self, name: str) -> Rules:
        """The same rules with one off."""
        return replace(self, **{name: False})


WHY = {f.name: str(f.metadata["why"]) for f in fields(Rules)}
