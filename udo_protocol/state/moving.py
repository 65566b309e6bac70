"""The steps of a move of key groups from a source slot to a target slot, each one atomic on its server and idempotent.

0. `prepare`: the target's owner reads the groups ahead, while the source serves them; then the source makes a checkpoint, the target
   reads the changes, and the source makes another one. The target reads everything that it still lacks at step 5.
1. `cut` on the source's queue server: from now on frames by an older map are refused, and HANDOVER is the next frame in its log.
2. The source's owner, having answered all frames before HANDOVER, makes a checkpoint that covers it; in the same step the groups leave its
   state.
3. `deliver` on the state server, directly after that checkpoint: the groups handed over are the target's to adopt, and the new map is in
   force.
4. `cut` on the target's queue server: it takes frames by the new map, after ADOPT in its log.
5. From now on the target's owner answers. Its next checkpoint covers ADOPT; in the same step the groups become part of its state. Until
   then the delivered groups stay for the next owner, which finds ADOPT in the log again. The node manager sends ADOPT twice, so that the
   owner does not wait for the end of an epoch.

The executor of a move keeps only its intent: each step shows on a server whether it was done.

If the target is on another node, steps 0 and 3 copy the groups to that node's state server (carrying.py), and the registry puts the new map
in force; the source's node manager executes the move, and calls the target's node manager for its part.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from udo_protocol.queue import untrusted
from udo_protocol.queue.connection import Arg, Connection
from udo_protocol.queue.durable import synced
from udo_protocol.queue.frame import ADOPT, HANDOVER, PREPARE, Header, encode
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.queue.route import Route
from udo_protocol.state import group_map
from udo_protocol.state.group_map import SlotGroups

# The lane of frames that come from no producer; their numbers are versions of the map.
LANE = "udo-move"
# How long a preparation stays valid if its move does not take place.
_PREPARED_MS = 600_000
_STEP = "a step of a move"  # what was not durable in time


@dataclass(frozen=True)
class Intent:
    """The intent of a move, noted before the first step: these key groups are to be in the slot with number `to`.

    `cut`: the version of the map to be cut, noted before the first cut; from then on the source may have handed over.
    `node`: the node that has the slot, for a deployment over nodes.
    """

    groups: tuple[int, ...]
    to: int
    strategy: str
    cut: int = 0
    node: str = ""


def handed_over(version: int) -> str:
    """The name of the groups that the source has handed over, which can be read like a savepoint."""
    return f"moved-{version}"


def adopted(version: int) -> str:
    """The name of the groups that the target is to adopt."""
    return f"adopted-{version}"


# -- the owners' part --------------------------------------------------------------------------------------------------


def prepared(state: Connection, keys: SlotKeys, version: int) -> None:
    """Note that the slot's owner has prepared the move."""
    state.call("SET", keys.savepoint_info(f"prepared-{version}"), 1, "PX", _PREPARED_MS)


def copy_taken(state: Connection, keys: SlotKeys, version: int) -> str:
    """The name of the copy that brought the groups to be adopted from another node; '' if they are from a slot of this one."""
    (found,) = untrusted.read(state, ("HGET", keys.savepoint_info(adopted(version)), "copy"))
    return bytes(found or b"").decode("utf-8", "replace")


def handing_over(keys: SlotKeys, version: int, groups: Sequence[int]) -> list[Arg]:
    """The command that removes these groups from the state; after all others of the checkpoint."""
    return ["FCALL", "udo_hand_over", 1, keys.prefix, version, *groups]


def taking_in(keys: SlotKeys, version: int) -> list[Arg]:
    """The command that makes the delivered groups part of the state; after all others of the checkpoint."""
    return ["FCALL", "udo_take_in", 1, keys.prefix, version]


# -- the node manager's part -------------------------------------------------------------------------------------------


def note(state: Connection, first: SlotKeys, intent: Intent | None) -> None:
    """Store the intent durably, before the first step; None removes it."""
    wish: Sequence[Arg] = ("DEL", first.moving) if intent is None else ("SET", first.moving, json.dumps(asdict(intent)))
    _durable(state, wish)


def noted(state: Connection, first: SlotKeys) -> Intent | None:
    """The stored intent; None if there is none."""
    (text,) = untrusted.read(state, ("GET", first.moving))
    if text is None:
        return None
    found = untrusted.document(text, first.moving)
    with untrusted.reading(first.moving, "groups, to and strategy"):
        groups, node = tuple(map(int, found["groups"])), str(found.get("node", ""))
        return Intent(groups, int(found["to"]), str(found["strategy"]), int(found["cut"]), node)


def put(state: Connection, first: SlotKeys, new: SlotGroups, *, only_if_none: bool = False) -> None:
    """Put a map in force that moves no group; `only_if_none`: unless a map is stored."""
    _durable(state, [*group_map.storing(first, json.dumps(new.document())), *(["NX"] if only_if_none else [])])


def prepare(queue: Connection, keys: SlotKeys, version: int, groups: Sequence[int], source: int, copy: str = "") -> int:
    """Let the slot's owner read these groups of slot `source` ahead, or read later changes; of another node's slot, from the copy of that
    name. Returns the number of the frame."""
    return _tell(queue, keys, Header(lane=LANE, number=version, kind=PREPARE, groups=groups, partition=source, copy=copy))


def prepare_source(queue: Connection, keys: SlotKeys, version: int) -> int:
    """Let the source's owner make a checkpoint, so that little is left to write at the cut. Returns the number of the frame it covers."""
    return _tell(queue, keys, Header(lane=LANE, number=version, kind=PREPARE))


def _tell(queue: Connection, keys: SlotKeys, header: Header) -> int:
    frame = b"".join(map(bytes, encode(header)))
    with untrusted.reading(keys.log, "a log"):
        return int(queue.call("FCALL", "udo_tell", 1, keys.prefix, frame, header.number, LANE))


def not_prepared(state: Connection, keys: SlotKeys, version: int) -> None:
    """Forget that the source has made its checkpoint for this move, so that it reports the next one."""
    state.call("DEL", keys.savepoint_info(f"prepared-{version}"))


def is_prepared(state: Connection, keys: SlotKeys, version: int) -> bool:
    """Whether the source has made its checkpoint for this move."""
    return bool(state.call("EXISTS", keys.savepoint_info(f"prepared-{version}")))


def cut(queue: Connection, keys: SlotKeys, route: Route, groups: Sequence[int] | None, *, again: bool = False) -> tuple[int, int]:
    """Let the slot take frames only by this route from now on; HANDOVER of `groups` (None: ADOPT) marks this moment in its log.

    Returns the number of that frame, and of the last answered one. `again`: the log has lost the frame.
    """
    kind, numbers = (ADOPT, ()) if groups is None else (HANDOVER, groups)
    frame = b"".join(map(bytes, encode(Header(lane=LANE, number=route.version, kind=kind, groups=numbers))))
    with untrusted.reading(keys.log, "a log"):
        at, emitted = queue.call("FCALL", "udo_cut", 1, keys.prefix, route.version, route.encode(), frame, LANE, int(again))
    return int(at), int(emitted)


def is_handed_over(state: Connection, keys: SlotKeys, version: int) -> bool:
    """Whether the groups have left the source's state, and wait to be delivered."""
    return bool(state.call("EXISTS", keys.savepoint_info(handed_over(version))))


def _told(keys: SlotKeys, version: int) -> str:
    """The list that gets an entry when the source hands over."""
    return f"{keys.savepoint_info(handed_over(version))}:told"


def is_adopted(state: Connection, keys: SlotKeys, version: int) -> bool:
    """Whether all groups delivered to the slot have become part of its state."""
    return not bool(state.call("EXISTS", keys.savepoint_info(adopted(version))))


def deliver(state: Connection, source: SlotKeys, to: SlotKeys, first: SlotKeys, new: SlotGroups, *, wait_ms: int = 0) -> bool:
    """Deliver the groups that `source` has handed over to the slot `to`, and put the map in force; False if there are none.

    Waits up to `wait_ms` for them. The server then delivers them directly after the checkpoint that hands them over, and one sync of the
    disk makes both durable.
    """
    told, document = _told(source, new.version), json.dumps(new.document())
    wait = [("BLPOP", told, f"{wait_ms / 1000:.3f}")] if wait_ms else []
    steps = [*wait, ("FCALL", "udo_deliver", 1, source.prefix, to.prefix, new.version, first.groups, document)]
    state.send(steps)
    replies = [state.receive(wait_ms / 1000 + state.default_timeout_s) for _ in steps]
    with untrusted.reading(source.savepoint_info(handed_over(new.version)), "what was handed over"):
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        synced(state, _STEP)
        return bool(replies[-1])


def _durable(state: Connection, command: Sequence[Arg]) -> None:
    state.call(*command)
    synced(state, _STEP)
