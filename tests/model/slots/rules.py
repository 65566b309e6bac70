"""The rules of a producer with several slots, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from tests.model.rules import rule


@dataclass(frozen=True)
class Rules:
    """All on: as built."""

    end_at_each: bool = rule("END goes to every slot, also where no event went; else that slot's watermark stays behind.")
    ended_at_all: bool = rule("An attempt has succeeded when every slot has ENDed it; else the next epoch drops what one of them has.")
    whole_time: bool = rule("END carries the highest event time of the whole partition; else each slot has a watermark of its own.")
    one_run_order: bool = rule("A run has one place for all slots; else two runs of one plan may be seen in another order by each.")

    def without(self, name: str) -> Rules:
        """The same rules with one off."""
        return replace(self, **{name: False})


WHY = {f.name: str(f.metadata["why"]) for f in fields(Rules)}
