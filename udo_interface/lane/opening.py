"""Opens a lane: asks the node manager once where the slot is, connects to its queue server, and cleans up at the end."""

from __future__ import annotations

import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from udo_interface.discovery import NODE_WAIT_SETTING
from udo_interface.lane.lane import Collector, Sender
from udo_interface.lane.place import Place, Stamp
from udo_protocol.certificates import Tls
from udo_protocol.errors import NodeAway, ProtocolError, ServerLost, SlotsAway, WaitTimeout
from udo_protocol.formats.schema import from_ipc, to_ipc
from udo_protocol.limits import KEY_GROUPS, OPEN_WAIT_MS, SlotLimits
from udo_protocol.node.api import connect_node
from udo_protocol.proto.node_manager_pb2 import OpenLaneRequest, SlotAddress
from udo_protocol.queue.backoff import LinearBackoff
from udo_protocol.queue.connection import Connection, Login
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.queue.lane_end import LaneEnd
from udo_protocol.queue.route import Route

# While a node manager is away: ask again after 50, 100 ... 1000 ms.
AWAY_INCREMENT_US, AWAY_CEILING_US = 50_000, 1_000_000
# A killed queue server is replaced within a second or so: ask again after 20, 40 ... 500 ms.
REPLACED_INCREMENT_US, REPLACED_CEILING_US = 20_000, 500_000


@dataclass(frozen=True)
class KeyedCall:
    """A keyed attempt: the run of the query it belongs to (empty: a batch job) and the key groups it answers for."""

    run: str
    call: str
    groups: tuple[int, ...]
    start_empty: bool = False
    plan: int = 0  # its number, from the registry
    key_groups: int = KEY_GROUPS  # number of groups that the keys are spread over
    stored: bool = False  # its state is restored from a store and saved there, so any node may serve it
    since: int | None = None  # the last epoch before this one in which anything happened; None: the one before


@dataclass(frozen=True)
class Request:
    """A producer's request to open a lane."""

    deployment: str
    session: str = ""
    partition: int = 0
    attempt: int = 0
    epoch: int | None = None
    pin_epoch: bool = False
    uid: str = ""
    window: int | None = None
    keyed: KeyedCall | None = None

    def lane(self) -> str:
        """A lane id unique to this attempt, readable in `udo status` and in logs."""
        parts = (self.session[-12:] or "client", self.uid or "0", "-" if self.epoch is None else self.epoch, self.partition, self.attempt)
        return ".".join(str(p).replace(" ", "_").replace(":", "_") for p in parts) + "." + secrets.token_hex(4)


@dataclass(frozen=True)
class Opened:
    """A node manager's answer: where the lane leads and the schemas of its events and answers."""

    lane: str
    place: Place
    limits: SlotLimits
    input: pa.Schema
    output: pa.Schema
    keys: SlotKeys
    queue_socket: str
    run_id: str
    login: Login
    route: Route
    stamp: Stamp | None = None
    group_slots: tuple[int, ...] = ()  # for each key group the index of its slot in `each`; empty: there is one slot
    others: tuple[SlotAddress, ...] = ()  # the slots after the first one
    tls: Tls | None = None  # for slots on other hosts
    # Opens the lane in a slot that key groups have moved to and that the deployment did not have before.
    open_lane: Callable[[str], tuple[Sender, Collector]] | None = field(default=None, compare=False)

    def end(self) -> LaneEnd:
        """Make a new connection to the lane; each thread needs its own."""
        conn = Connection(self.queue_socket, run_id=self.run_id, login=self.login, tls=self.tls)
        end = LaneEnd(conn, self.keys, self.lane, self.limits)
        end.route = self.route
        return end

    def each(self) -> list[Opened]:
        """One lane per slot, answering for the key groups that the slot has."""
        if not self.others:
            return [self]
        others = (self._part(k, replace(self, **_address(a)), a.node) for k, a in enumerate(self.others, 1))
        return [self._part(0, self, self.place.node), *others]

    def _part(self, slot: int, of: Opened, node: str) -> Opened:
        assert self.stamp is not None
        groups = tuple(g for g in self.stamp.groups if self.group_slots[g % len(self.group_slots)] == slot)
        place = replace(self.place, slot=of.keys.prefix.rstrip(":"), node=node or self.place.node)
        return replace(of, place=place, stamp=replace(self.stamp, groups=groups), group_slots=(), others=())


def ask(
    address: str, request: Request, sent: pa.Schema | None = None, wait_s: float = 0.0, tls: Tls | None = None, lane: str = ""
) -> Opened:
    """Ask the node manager at `address` for a lane; its errors (NotFound, SchemaError, OperatorError, ...) pass through.

    A node manager that is away is asked again for `wait_s`: it may just be restarting.
    """
    backoff = LinearBackoff(AWAY_INCREMENT_US, AWAY_CEILING_US)
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return _ask(address, request, sent, tls, lane or request.lane())
        except NodeAway as e:
            if time.monotonic() >= deadline:
                raise _gave_up(e, request, wait_s) if wait_s else e from None
        backoff.pause()


def _gave_up(e: NodeAway, request: Request, waited_s: float) -> NodeAway:
    if isinstance(e, SlotsAway):  # another host would ask the same node
        return SlotsAway(f"{e}. Waited {waited_s:g} s for it ({NODE_WAIT_SETTING}); Spark tries the task again (spark.task.maxFailures)")
    keyed = " (a keyed operator's state moves with it only if the call has store=)" if request.keyed else ""
    return NodeAway(
        f"{e}. Waited {waited_s:g} s for it on host {socket.gethostname()} ({NODE_WAIT_SETTING}). If it is lost for good, let Spark run "
        f"the task on another host: spark.excludeOnFailure.enabled=true{keyed}; see docs/executors.md"
    )


def _ask(address: str, request: Request, sent: pa.Schema | None, tls: Tls | None, lane: str) -> Opened:
    asked = OpenLaneRequest(
        deployment=request.deployment,
        lane=lane,
        session=request.session,
        epoch=request.epoch or 0,
        pin_epoch=request.pin_epoch,
        input_schema=b"" if sent is None else to_ipc(sent),
        wait_ms=OPEN_WAIT_MS,
    )
    if (keyed := request.keyed) is not None:
        asked.run, asked.call, asked.plan, asked.key_groups = keyed.run, keyed.call, keyed.plan, keyed.key_groups
        asked.stored, asked.start_empty = keyed.stored, keyed.start_empty
    reply = connect_node(address, tls).open_lane(asked)
    slots, groups = len(reply.slots), reply.groups.slots
    several = slots > 1 and request.keyed is not None
    if not slots or (several and max(groups, default=slots) >= slots):
        raise ProtocolError(
            f"node {reply.node} offers {slots} slots for {request.deployment}, and a map of {len(groups)} key groups: expected one slot, "
            "or for a keyed operator several and for each key group one of them"
        )
    first = _address(reply.slots[0])
    bounds = {
        n: getattr(reply, n)
        for n in ("window_frames", "answer_timeout_ms", "frame_bytes", "retained_bytes", "lane_ttl_ms", "backoff_ceiling_us")
        if getattr(reply, n)
    }
    limits = SlotLimits.of(bounds)
    place = Place(
        operator=reply.operator,
        version=reply.version,
        node=reply.node,
        slot=first["keys"].prefix.rstrip(":"),
        deployment=request.deployment,
        partition=request.partition,
        epoch=request.epoch,
        session=request.session,
        window_frames=request.window or limits.window_frames,
        answer_timeout_ms=limits.answer_timeout_ms,
        frame_bytes=limits.frame_bytes,
        policy=reply.policy,
        timed=reply.timed,
    )
    return Opened(
        lane,
        place,
        limits,
        from_ipc(reply.input_schema),
        from_ipc(reply.output_schema),
        **first,
        stamp=_stamp(request, reply.run),
        group_slots=tuple(groups) if several else (),
        others=tuple(reply.slots[1:]) if several else (),
        tls=tls,
    )


def _address(slot: SlotAddress) -> dict[str, Any]:
    """The fields of Opened that say where a slot is."""
    return {
        "keys": SlotKeys.parse(slot.prefix),
        "queue_socket": slot.queue_socket,
        "run_id": slot.run_id,
        "login": Login(slot.user, slot.password),
        "route": Route(slot.route, (slot.name or slot.prefix,)),
    }


def _stamp(request: Request, run: int) -> Stamp | None:
    keyed = request.keyed
    if keyed is None:
        return None
    # A batch job is the only run of its own session.
    return Stamp(run or 1, request.epoch or 0, request.attempt, keyed.groups, keyed.start_empty, not keyed.run, keyed.since)


def reach(
    address: str, request: Request, sent: pa.Schema | None = None, wait_s: float = 0.0, tls: Tls | None = None
) -> tuple[Opened, LaneEnd]:
    """As `_reach_each`, but keep only the connection to the first slot."""
    opened, (end, *others) = _reach_each(address, request, sent, wait_s, tls)
    for other in others:
        other.conn.close()
    return opened, end


def _reach_each(address: str, request: Request, sent: pa.Schema | None, wait_s: float, tls: Tls | None) -> tuple[Opened, list[LaneEnd]]:
    """`ask`, then connect to each slot. While a lost queue server is being replaced it asks again: nothing was sent, so nothing is lost."""
    backoff = LinearBackoff(REPLACED_INCREMENT_US, REPLACED_CEILING_US)
    deadline = time.monotonic() + OPEN_WAIT_MS / 1000
    while True:
        try:
            opened, ends = ask(address, request, sent, wait_s, tls), list[LaneEnd]()
            with ExitStack() as connected:
                for part in opened.each():
                    ends.append(part.end())
                    connected.callback(ends[-1].conn.close)
                connected.pop_all()
            return opened, ends
        except ServerLost as e:
            if time.monotonic() > deadline:
                raise ServerLost(f"deployment {request.deployment}: {e}; it was not replaced within {OPEN_WAIT_MS / 1000:g} s") from e
        backoff.pause()


@contextmanager
def conversations(
    address: str, request: Request, sent: pa.Schema, expected: pa.Schema, wait_s: float = 0.0, tls: Tls | None = None
) -> Iterator[tuple[list[tuple[Sender, Collector]], Opened]]:
    """A lane in each slot of the deployment for the length of a `with`: frames of schema `sent`, answers conformed to `expected`."""
    opened, ends = _reach_each(address, request, sent, wait_s, tls)
    left = deque(zip(opened.each(), ends, strict=True))
    lanes: list[tuple[Sender, Collector]] = []

    def use(part: Opened, end: LaneEnd) -> tuple[Sender, Collector]:
        end.conn.place = str(part.place)
        sender = Sender(end, part.place, sent, stamp=part.stamp)
        try:
            sender.open()
        except BaseException:
            sender.close()
            raise
        return sender, Collector(end, sender, expected)

    def open_lane(slot: str) -> tuple[Sender, Collector]:
        part = _offered(address, request, opened, slot, sent, wait_s)
        try:
            end = part.end()
        except ServerLost as e:
            raise ServerLost(f"{part.place}: {e}") from e
        return use(part, end)

    try:
        while left:
            lanes.append(use(*left.popleft()))
        yield lanes, replace(opened, open_lane=open_lane)
    finally:
        # Whatever happened, remove the lanes' answers and credits at once; if the server is gone, they are gone with it.
        for sender, _ in lanes:
            sender.close()
        for _, end in left:
            end.conn.close()


def _offered(address: str, request: Request, opened: Opened, slot: str, sent: pa.Schema, wait_s: float) -> Opened:
    """The lane in the slot of this name in a group map, without key groups. The node offers it once the slot has received its groups."""
    backoff = LinearBackoff(REPLACED_INCREMENT_US, REPLACED_CEILING_US)
    deadline = time.monotonic() + OPEN_WAIT_MS / 1000
    while True:
        for part in ask(address, request, sent, wait_s, opened.tls, opened.lane).each():
            if slot in part.route.slots and part.stamp is not None:
                return replace(part, stamp=replace(part.stamp, groups=()))
        if time.monotonic() > deadline:
            raise WaitTimeout(
                f"{opened.place}: key groups are moving to {slot}, and the node has not offered that slot for {OPEN_WAIT_MS / 1000:g} s; "
                f"look at: udo status"
            )
        backoff.pause()
