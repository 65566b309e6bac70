"""The status of a node manager's slots, as far as its servers answer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from node_manager.deployments.deployments import NodeDeployment
from node_manager.manager import Manager
from node_manager.servers.binaries import Role
from node_manager.slots.slot import SlotView
from node_manager.slots.watching import COUNTED
from udo_protocol import ranges
from udo_protocol.errors import ServerLost, SlotBroken
from udo_protocol.proto import node_manager_pb2 as pb
from udo_protocol.queue import slot, untrusted
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.state.dead_letters import count
from udo_protocol.state.group_map import SlotGroups

_Answer = TypeVar("_Answer")


@contextlib.contextmanager
def connected(manager: Manager, role: Role) -> Iterator[Connection | None]:
    """A connection to that server, or None while it is away."""
    try:
        conn = manager.servers.glance(role)
    except ServerLost:
        yield None
        return
    with contextlib.closing(conn):
        yield conn


def asked(conn: Connection | None, question: Callable[..., _Answer], *about: Any, otherwise: _Answer) -> _Answer:
    """The server's answer, or `otherwise` while it is away or still reads its file: a status must not fail for that."""
    with contextlib.suppress(ServerLost):
        return question(conn, *about) if conn else otherwise
    return otherwise


@dataclass(frozen=True)
class SlotReadings:
    """The servers' figures of a slot; `broken`: why not all of them could be read."""

    log: slot.SlotStats
    counted: dict[str, float]
    dead_letters: int
    broken: str
    process_end: str = ""


def look(queue: Connection | None, state: Connection | None, v: SlotView) -> SlotReadings:
    """Read the figures of a slot. Keys that its operator may have broken affect this slot only."""
    keys = SlotKeys(v.deployment, v.number)
    broken: list[str] = []

    def sound(conn: Connection | None, question: Callable[..., _Answer], *about: Any, otherwise: _Answer) -> _Answer:
        try:
            return asked(conn, question, *about, otherwise=otherwise)
        except SlotBroken as e:
            broken.append(str(e))
            return otherwise

    log = sound(queue, slot.slot_stats, keys, otherwise=slot.SlotStats(0, 0, 0, 0, 0, 0))
    nothing: dict[str, float] = {}
    counted = sound(queue, slot.read_stats, keys, v.owner.name, otherwise=nothing) if v.owner else nothing
    ended = bool(v.owner and counted.get(slot.PROCESS_ENDS))
    process_end = sound(queue, slot.read_process_end, keys, v.owner.name, otherwise="") if v.owner and ended else ""
    return SlotReadings(log, counted, sound(state, count, keys, otherwise=0), "; ".join(broken), process_end)


def group_map_of(m: Manager, state: Connection | None, d: NodeDeployment) -> SlotGroups | None:
    """Which slot of this node has which key group; None if that is not known."""
    if placed := m.across.find(d.name):
        return placed.on(m.settings.node, [own.number for own in d.own], d.config.instance.key_groups)
    return asked(state, m.moves.of, d, otherwise=None)


def slot_status(m: Manager, v: SlotView, looked: SlotReadings, groups: SlotGroups | None = None) -> pb.SlotStatus:
    """The status of a slot for `udo status`: its owner, log, limits and, if it is keyed, key groups."""
    log = looked.log
    seen = m.driver.inspect(v.owner.handle) if v.owner and v.owner.handle else None
    image = v.wanted.image if v.wanted else None
    if groups is not None and (image is None or not image.manifest.key or v.number not in groups.routes):
        groups = None
    return pb.SlotStatus(
        deployment=v.deployment,
        slot=v.number,
        operator=image.manifest.name if image else "",
        version=image.manifest.version if image else "",
        digest=image.digest if image else "",
        state="broken" if looked.broken else v.state,
        instance=v.owner.name if v.owner else "",
        pid=seen.pid if seen else 0,
        operator_pid=int(looked.counted.get(slot.PROCESS_PID, 0)),
        restarts=v.restarts + int(totals(v, looked)[slot.PROCESS_ENDS]),
        depth_frames=log.depth_frames,
        retained_bytes=log.retained_bytes,
        emitted=log.emitted,
        rss_bytes=seen.rss_bytes if seen else 0,
        last_error=looked.broken or v.last_error or looked.process_end,
        pinned=v.pinned,
        lanes=log.lanes,
        dead_letters=looked.dead_letters,
        policy=v.wanted.config.bad_events() if v.wanted else "",
        groups=ranges.shown(groups.of(v.number)) if groups else "",
        map_version=groups.version if groups else 0,
        diff=m.mirrors.describe(v.deployment, v.number),
        canary=m.canaries.describe(v.deployment, v.number),
    )


def totals(v: SlotView, looked: SlotReadings) -> dict[str, float]:
    """Counters of a slot since this manager has known it, including those of former instances."""
    return {n: min(v.totals.get(n, 0.0) + looked.counted.get(n, 0.0), untrusted.MOST) for n in COUNTED}


def slot_stats(m: Manager, queue: Connection | None, v: SlotView, looked: SlotReadings | None = None) -> pb.SlotStats:
    """The figures of a slot for `udo top`."""
    looked = looked or look(queue, None, v)
    status, now, total = slot_status(m, v, looked), looked.counted, totals(v, looked)
    seen = m.driver.inspect(v.owner.handle) if v.owner and v.owner.handle else None
    return pb.SlotStats(
        deployment=v.deployment,
        slot=v.number,
        version=status.version,
        events_in=int(total["events_in"]),
        events_out=int(total["events_out"]),
        frames=int(total["frames"]),
        errors=int(total["errors"]),
        dead_letters=int(total["dead_letters"]),
        retries=int(total["retries"]),
        busy_s=total["busy_s"],
        p50_ms=now.get("p50_ms", 0.0),
        p99_ms=now.get("p99_ms", 0.0),
        cpu_percent=seen.cpu_percent if seen else 0.0,
        rss_bytes=status.rss_bytes,
        depth_frames=status.depth_frames,
        restarts=status.restarts,
        retained_bytes=status.retained_bytes,
    )
