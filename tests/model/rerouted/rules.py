"""The rules of a producer and the two slots while a group moves, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from tests.model.rules import rule


@dataclass(frozen=True)
class Rules:
    """All on: as built."""

    split_anew: bool = rule("A frame refused at the source is split anew by the newer map; else the source begins the moved group anew.")
    opened: bool = rule("The other slot takes frames by the newer map only when it has adopted the group; else it begins it anew.")
    ended_once_more: bool = rule("Groups that no END has named get one where they are now; else nobody completes their attempt.")
    end_at_new: bool = rule("END also goes to a slot that the attempt has just learned of; else its watermark stays behind.")
    undo: bool = rule("Undo is handed over; an attempt may have begun at the source, fail, and be tried again at the other slot.")
    labels: bool = rule("Labels are handed over; else the attempt that goes on is taken for a newer one, and begins again.")
    candidate: bool = rule("The ENDed values of an older attempt are handed over, too; Spark may have taken that one's answers.")
    delivered: bool = rule("What was delivered stays until a checkpoint has taken it in; the slot may die after its first answers.")
    taken_in: bool = rule("The first checkpoint behind the adoption takes the group in, whatever its cause; the log before it is gone.")
    times: bool = rule("Event times are handed over with the first group; a new slot has had no END of the epochs before.")

    def without(self, name: str) -> Rules:
        """The same rules with one off."""
        return replace(self, **{name: False})


WHY = {f.name: str(f.metadata["why"]) for f in fields(Rules)}
