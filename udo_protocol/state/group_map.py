"""The group map: the slot of each key group of a keyed deployment. Versioned; kept with the first slot's state; moving.py changes it.

An unchanged map is not stored: it spreads the groups evenly over the slots of the deployment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from udo_protocol.errors import Conflict
from udo_protocol.queue import untrusted
from udo_protocol.queue.connection import Arg, Connection
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.queue.route import Route

# The version of an unchanged map.
FIRST_VERSION = 1


@dataclass(frozen=True)
class SlotGroups:
    """`groups`: for each key group the number of its slot. `routes`: for each slot the version in which it last got or lost groups,
    which is the only one by which it takes frames."""

    version: int
    routes: dict[int, int]
    groups: tuple[int, ...]

    @classmethod
    def even(cls, slots: Sequence[int], key_groups: int) -> SlotGroups:
        """A range of groups for each slot, of lengths that differ by at most one."""
        return cls(FIRST_VERSION, dict.fromkeys(slots, 0), tuple(slots[g * len(slots) // key_groups] for g in range(key_groups)))

    @property
    def slots(self) -> list[int]:
        """All slots, including those without a group: every attempt ENDs in each."""
        return list(self.routes)

    def of(self, slot: int) -> list[int]:
        """The groups of a slot."""
        return [g for g, number in enumerate(self.groups) if number == slot]

    def moved(self, groups: Collection[int], source: int, to: int) -> SlotGroups:
        """The next version, with these groups of `source` in `to`."""
        version, going = self.version + 1, frozenset(groups)
        numbers = tuple(to if g in going else number for g, number in enumerate(self.groups))
        return SlotGroups(version, {**self.routes, source: version, to: version}, numbers)

    def without(self, slot: int) -> SlotGroups:
        """The next version, without a slot that has no group."""
        if there := self.of(slot):
            raise Conflict(f"slot {slot} still has {len(there)} key groups: expected none, since it is to be removed")
        return SlotGroups(self.version + 1, {n: v for n, v in self.routes.items() if n != slot}, self.groups)

    def places(self) -> list[int]:
        """The place of each key group's slot in `slots`."""
        place = {number: at for at, number in enumerate(self.routes)}
        return [place[number] for number in self.groups]

    def route(self, slot: int, named: Callable[[int], SlotKeys | str]) -> Route:
        """The route that a slot sends to producers that use an older map. `named`: a slot by its keys, or its name in a placement."""
        slots, versions = tuple(str(named(number)) for number in self.routes), tuple(self.routes.values())
        return Route(self.routes[slot], slots, self.version, tuple(self.places()), versions)

    def document(self) -> dict[str, object]:
        """The map as a JSON document."""
        return {"version": self.version, "routes": list(self.routes.items()), "groups": self.groups}


def load(state: Connection, first: SlotKeys) -> SlotGroups | None:
    """The stored map of a deployment, with the state of its first slot; None if the unchanged one is in force."""
    (text,) = untrusted.read(state, ("GET", first.groups))
    if text is None:
        return None
    found = untrusted.document(text, first.groups)
    with untrusted.reading(first.groups, "a group map"):
        return SlotGroups(int(found["version"]), {int(n): int(v) for n, v in found["routes"]}, tuple(map(int, found["groups"])))


def storing(first: SlotKeys, text: str) -> Sequence[Arg]:
    """The command that puts a map in force; a move does that in the step that delivers the state."""
    return ("SET", first.groups, text)


@dataclass(frozen=True)
class MoveStep:
    """One cut of a move: these groups go from slot `source` to slot `to`, in the map of that version."""

    version: int
    source: int
    to: int
    groups: list[int]


def spreading(now: SlotGroups, slots: Sequence[int]) -> list[MoveStep]:
    """The cuts, in order, that spread the groups evenly over these slots, provided that nothing else moves groups before."""
    made: list[MoveStep] = []
    for to, groups in shares(now, slots).items():
        for source in dict.fromkeys(now.groups[g] for g in groups):
            some = [g for g in groups if now.groups[g] == source]
            now = now.moved(some, source, to)
            made.append(MoveStep(now.version, source, to, some))
    return made


def shares(now: SlotGroups, slots: Sequence[int]) -> dict[int, list[int]]:
    """The groups to give to each of these slots to spread all groups evenly over them with as few moves as possible."""
    have = {slot: now.of(slot) for slot in slots}
    free = [g for g, slot in enumerate(now.groups) if slot not in have]
    each, more = divmod(len(now.groups), len(slots))
    wanted = {slot: each + (at < more) for at, slot in enumerate(sorted(slots, key=lambda slot: -len(have[slot])))}
    for slot, groups in have.items():
        free += groups[wanted[slot] :]
    free.sort()
    given = {}
    for slot, groups in have.items():
        lacks = max(wanted[slot] - len(groups), 0)
        given[slot], free = free[:lacks], free[lacks:]
    return {slot: groups for slot, groups in given.items() if groups}
