"""State machines of instances and updates, as tables of allowed moves. An illegal move raises.

docs/design draws its state diagrams from these tables (`python -m udo_protocol.lifecycle`).
"""

from __future__ import annotations

from collections.abc import Mapping

from udo_protocol.errors import Conflict

# warm: runtime loaded, no operator; loading: importing the operator and running open(); standby: ready, may not answer;
# owner: answers; leaving: fenced or asked to stop, finishing; stopped: ended on request; failed: ended by itself.
INSTANCE: Mapping[str, tuple[str, ...]] = {
    "starting": ("warm", "loading", "stopped", "failed"),
    "warm": ("loading", "stopped", "failed"),
    "loading": ("standby", "stopped", "failed"),
    "standby": ("owner", "leaving", "stopped", "failed"),
    "owner": ("leaving", "stopped", "failed"),
    "leaving": ("stopped", "failed"),
    "stopped": (),
    "failed": (),
}

# A live update: prepare on every node, then promote on every node. Until `promoting` the old version serves; in a canary the
# new version serves a share of the new lanes, until it is rolled back or the update continues.
UPDATE: Mapping[str, tuple[str, ...]] = {
    "requested": ("refused", "canary", "preparing"),
    "canary": ("preparing", "rolled_back", "failed"),
    "preparing": ("promoting", "failed"),
    "promoting": ("done", "failed"),
    "refused": (),
    "rolled_back": (),
    "failed": (),
    "done": (),
}
# The states of an update under way, and those of a finished one.
UPDATE_OPEN = ("canary", "preparing", "promoting")
UPDATE_FINAL = tuple(state for state, nexts in UPDATE.items() if not nexts)
# The state that a node reports for a deployment whose image it does not accept; the node tries again when something has changed.
REFUSED = "refused"


class Lifecycle:
    """A state that changes only as its table allows."""

    def __init__(self, table: Mapping[str, tuple[str, ...]], state: str, what: str) -> None:
        if state not in table:
            raise Conflict(f"{what}: unknown state {state!r}; expected one of {', '.join(table)}")
        self._table, self.state, self._what = table, state, what

    def move(self, to: str) -> None:
        """Change to state `to`, or raise Conflict naming the allowed states."""
        if to not in self._table[self.state]:
            allowed = ", ".join(self._table[self.state]) or "nothing"
            raise Conflict(f"{self._what} is {self.state}: it may become {allowed}, not {to}")
        self.state = to

    @property
    def final(self) -> bool:
        """Whether no state can follow."""
        return not self._table[self.state]


def diagram(table: Mapping[str, tuple[str, ...]]) -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {next(iter(table))}"]
    for state, nexts in table.items():
        lines += [f"    {state} --> {n}" for n in nexts or ("[*]",)]
    return "\n".join(lines)


if __name__ == "__main__":
    print(diagram(INSTANCE), diagram(UPDATE), sep="\n\n")
