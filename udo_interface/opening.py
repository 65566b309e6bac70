"""Opens a lane: asks the node manager once where the slot is, connects to its queue server, and cleans up at the end."""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa

from udo_interface.discovery import NODE_WAIT_SETTING
from udo_interface.lane import Collector, Sender
from udo_interface.place import Place, Stamp
from udo_protocol.errors import NodeAway, PeerError, ProtocolError, ServerLost
from udo_protocol.formats.schema import from_ipc, to_ipc
from udo_protocol.limits import DEFAULT, KEY_GROUPS, SlotLimits
from udo_protocol.node.api import connect_node
from udo_protocol.queue.backoff import LinearBackoff
from udo_protocol.queue.connection import Connection, Login
from udo_protocol.queue.lane_end import LaneEnd
from udo_protocol.queue.route import Route

# An instance that is just being started (first deployment, crash, cold version pin) is worth this wait.
OPEN_WAIT_MS = 30_000
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
    started_ms: int = 0
    key_groups: int = KEY_GROUPS  # that keys are spread over
    stored: bool = False  # its state is brought from a store and taken there, so any node may serve it


@dataclass(frozen=True)
class Request:
    """What a producer sends to open a lane."""

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
    """A node manager's answer: where the lane leads and what travels there."""

    lane: str
    place: Place
    limits: SlotLimits
    input: pa.Schema
    output: pa.Schema
    prefix: str
    queue_socket: str
    run_id: str
    login: Login
    route: Route
    stamp: Stamp | None = None

    def end(self) -> LaneEnd:
        """A connection of its own to the lane; one per thread."""
        end = LaneEnd(Connection(self.queue_socket, run_id=self.run_id, login=self.login), self.prefix, self.lane, self.limits)
        end.route = self.route
        return end


def ask(address: str, request: Request, sent: pa.Schema | None = None, wait_s: float = 0.0) -> Opened:
    """Ask the node manager at `address` for a lane; its errors (NotFound, SchemaError, OperatorError, ...) pass through.

    One that is away is asked again for `wait_s`: it may just be restarting.
    """
    backoff = LinearBackoff(AWAY_INCREMENT_US, AWAY_CEILING_US)
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return _ask(address, request, sent)
        except NodeAway as e:
            if time.monotonic() >= deadline:
                raise _gave_up(e, request, wait_s) if wait_s else e from None
        backoff.pause()


def _gave_up(e: NodeAway, request: Request, waited_s: float) -> NodeAway:
    keyed = " (a keyed operator's state moves with it only if the call has store=)" if request.keyed else ""
    return NodeAway(
        f"{e}. Waited {waited_s:g} s for it on host {socket.gethostname()} ({NODE_WAIT_SETTING}). If it is lost for good, let Spark run "
        f"the task on another host: spark.excludeOnFailure.enabled=true{keyed}; see docs/executors.md"
    )


def _ask(address: str, request: Request, sent: pa.Schema | None) -> Opened:
    lane = request.lane()
    reply = connect_node(address).open_lane(
        request.deployment,
        lane,
        session=request.session,
        epoch=request.epoch or 0,
        pin_epoch=request.pin_epoch,
        input_schema=b"" if sent is None else to_ipc(sent),
        wait_ms=OPEN_WAIT_MS,
        run=request.keyed.run if request.keyed else "",
        call=request.keyed.call if request.keyed else "",
        run_started_ms=request.keyed.started_ms if request.keyed else 0,
        key_groups=request.keyed.key_groups if request.keyed else 0,
        stored=bool(request.keyed and request.keyed.stored),
        start_empty=bool(request.keyed and request.keyed.start_empty),
    )
    if len(reply.slots) != 1:
        raise ProtocolError(
            f"node {reply.node} offers {len(reply.slots)} slots for {request.deployment}; this version of udo-spark speaks to exactly one"
        )
    slot = reply.slots[0]
    bounds = {
        n: getattr(reply, n)
        for n in ("window_frames", "answer_timeout_ms", "frame_bytes", "retained_bytes", "lane_ttl_ms", "backoff_ceiling_us")
        if getattr(reply, n)
    }
    limits = replace(DEFAULT, **bounds)
    place = Place(
        operator=reply.operator,
        version=reply.version,
        node=reply.node,
        slot=slot.prefix.rstrip(":"),
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
        slot.prefix,
        slot.queue_socket,
        slot.run_id,
        Login(slot.user, slot.password),
        Route(reply.route, (slot.prefix,)),
        _stamp(request, reply.run),
    )


def _stamp(request: Request, run: int) -> Stamp | None:
    keyed = request.keyed
    if keyed is None:
        return None
    # A batch job is the only run of a session of its own.
    return Stamp(run or 1, request.epoch or 0, request.attempt, keyed.groups, keyed.start_empty, job=not keyed.run)


def reach(address: str, request: Request, sent: pa.Schema | None = None, wait_s: float = 0.0) -> tuple[Opened, LaneEnd]:
    """`ask`, then connect. While a lost queue server is being replaced it asks again: nothing was sent, so nothing is lost."""
    backoff = LinearBackoff(REPLACED_INCREMENT_US, REPLACED_CEILING_US)
    deadline = time.monotonic() + OPEN_WAIT_MS / 1000
    while True:
        try:
            opened = ask(address, request, sent, wait_s)
            return opened, opened.end()
        except ServerLost as e:
            if time.monotonic() > deadline:
                raise ServerLost(f"deployment {request.deployment}: {e}; it was not replaced within {OPEN_WAIT_MS / 1000:g} s") from e
        backoff.pause()


@contextmanager
def conversation(
    address: str, request: Request, sent: pa.Schema, expected: pa.Schema, wait_s: float = 0.0
) -> Iterator[tuple[Sender, Collector, Place]]:
    """A lane over one connection for the length of a `with`: frames of schema `sent`, answers conformed to `expected`."""
    opened, end = reach(address, request, sent, wait_s)
    sender = Sender(end, opened.place, sent, stamp=opened.stamp)
    try:
        sender.open()
        yield sender, Collector(end, sender, expected), opened.place
    except ServerLost as e:
        raise ServerLost(f"{opened.place}: {e}") from e
    finally:
        # Whatever happened, the lane's answers and credits go at once; if the server is gone they are gone with it.
        with contextlib.suppress(PeerError, OSError):
            sender.abandon()
            end.close()
        end.conn.close()
