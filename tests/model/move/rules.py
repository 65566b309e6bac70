"""The rules of a move, each with its reason. Without a rule the model shows what goes wrong."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from tests.model.rules import rule


@dataclass(frozen=True)
class Rules:
    """All on: the complete protocol."""

    moved: bool = rule("From the cut on, A's queue server refuses the group's frames; else both slots answer for it.")
    gap: bool = rule("A producer that is told MOVED sends again from the refused frame on; else later frames overtake those refused next.")
    settled: bool = rule("A producer takes a newer map only when nothing is on its way under the old one; else a refused frame comes late.")
    drain: bool = rule("B answers only after it has all of A's log up to the cut; else it answers from values that lack frames.")
    keep: bool = rule("A forgets the group only once B has a durable checkpoint of its own; else B's crash loses it.")
    record: bool = rule("A forgets the group only once its own checkpoint covers the cut; its replacement has frames of it to answer.")
    undo: bool = rule("Undo is handed over with the values; the attempt may fail after the move and be repeated at B.")
    labels: bool = rule("Labels are handed over, too; else B takes the attempt that goes on for a newer one, and takes it back.")

    def without(self, name: str) -> Rules:
        """The same rules with one off."""
        return replace(self, **{name: False})


WHY = {f.name: str(f.metadata["why"]) for f in fields(Rules)}
