"""The gRPC service of a node: requests to the manager, answers back. No decisions here."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass
from typing import TypeVar

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from node_manager.admin import logs, recording
from node_manager.admin.dead_letters import DeadLetters
from node_manager.admin.state import States
from node_manager.deployments.lanes import require_groups
from node_manager.homes import SessionRequest
from node_manager.manager import Manager
from node_manager.rpc import dead_service, record_service, state_service
from node_manager.rpc.wire import stream, unary
from node_manager.servers.binaries import Role
from node_manager.slots.slot import SlotView
from node_manager.slots.watching import COUNTED
from udo_protocol import supervised
from udo_protocol.errors import ServerLost, SlotBroken, Unavailable, UsageError
from udo_protocol.formats.schema import to_ipc
from udo_protocol.limits import DEFAULT, KEY_GROUPS
from udo_protocol.proto import node_manager_pb2 as pb
from udo_protocol.proto import node_manager_pb2_grpc as rpc
from udo_protocol.queue import slot
from udo_protocol.queue.connection import Connection
from udo_protocol.state import untrusted
from udo_protocol.state.dead_letters import count

SERVICE = "udo.v1.NodeManager"
# Every open lane, deploy and log follower holds one while it waits.
_THREADS = 64
_METADATA_BYTES = 64 << 10
CLOSE_GRACE_S = 2.0
_Answer = TypeVar("_Answer")


class NodeService(rpc.NodeManagerServicer):
    """See node_manager.proto."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._states = States(manager)
        self._dead = DeadLetters(manager)

    @unary
    def OpenLane(self, request: pb.OpenLaneRequest, context: grpc.ServicerContext) -> pb.OpenLaneReply:
        lane = self._manager.lanes.open(
            request.deployment,
            session=request.session,
            epoch=request.epoch,
            pin_epoch=request.pin_epoch,
            schema=request.input_schema,
            wait_s=request.wait_ms / 1000,
        )
        run = 0
        if request.run:
            base = request.deployment.partition("@")[0]
            asked = SessionRequest(base, request.session, request.epoch, request.stored, request.start_empty)
            run = self._manager.lanes.run_order(lane, asked, request.run, request.call, request.run_started_ms)
        manifest, wanted = lane.image.manifest, lane.slot.wanted
        if manifest.key:
            require_groups(request.deployment, request.key_groups or KEY_GROUPS, wanted)
        route = self._manager.lanes.begun(lane, request.session, request.lane)
        limits = wanted.config.limits if wanted else {}
        servers = self._manager.servers
        login = servers.lanes(lane.slot.prefix)
        address = pb.SlotAddress(
            prefix=lane.slot.prefix,
            queue_socket=str(servers.socket("queue")),
            run_id=lane.run_id,
            user=login.user,
            password=login.password,
        )
        return pb.OpenLaneReply(
            operator=manifest.name,
            version=manifest.version,
            digest=lane.image.digest,
            input_schema=to_ipc(manifest.input_schema),
            output_schema=to_ipc(manifest.output_schema),
            slots=[address],
            route=route,
            node=self._manager.settings.node,
            window_frames=int(limits.get("window_frames", DEFAULT.window_frames)),
            answer_timeout_ms=int((wanted.answer_timeout_s if wanted else manifest.limits.answer_timeout_s) * 1000),
            frame_bytes=int(limits.get("frame_bytes", DEFAULT.frame_bytes)),
            retained_bytes=int(limits.get("retained_bytes", DEFAULT.retained_bytes)),
            lane_ttl_ms=int(limits.get("lane_ttl_ms", DEFAULT.lane_ttl_ms)),
            run=run,
            key=manifest.key,
            timed=manifest.event_time is not None,
            policy=wanted.config.policy if wanted else "",
            backoff_ceiling_us=int(limits.get("backoff_ceiling_us", DEFAULT.backoff_ceiling_us)),
        )

    @unary
    def Deploy(self, request: pb.DeployRequest, context: grpc.ServicerContext) -> pb.DeployReply:
        config = _config(request.config_json)
        return pb.DeployReply(
            instance=self._manager.deploy(request.name, request.operator, request.version, request.digest, config, request.wait_ms / 1000)
        )

    @unary
    def Undeploy(self, request: pb.UndeployRequest, context: grpc.ServicerContext) -> pb.UndeployReply:
        self._manager.undeploy(request.name, drop_state=request.drop_state)
        return pb.UndeployReply()

    @stream
    def Update(self, request: pb.UpdateRequest, context: grpc.ServicerContext) -> Iterator[pb.UpdateEvent]:
        config = _config(request.config_json) if request.config_json else None
        for step in self._manager.updates.update(request.name, request.version, request.digest, config):
            yield pb.UpdateEvent(phase=step.phase, detail=step.detail, at_ms=step.at_ms, error_code=step.error_code)

    @stream
    def Diff(self, request: pb.DiffRequest, context: grpc.ServicerContext) -> Iterator[pb.DiffEvent]:
        stop = threading.Event()
        context.add_callback(stop.set)
        r = request
        for found in self._manager.diff(r.name, r.version, r.digest, r.for_ms / 1000, r.examples, stop):
            yield pb.DiffEvent(report_json=json.dumps(found.report), examples_json=found.examples)

    @unary
    def Status(self, request: pb.StatusRequest, context: grpc.ServicerContext) -> pb.StatusReply:
        m = self._manager
        servers = [
            pb.ServerStatus(
                role=s.role,
                socket=s.socket,
                pid=s.process.pid,
                version=s.version,
                run_id=s.run_id,
                used_bytes=m.servers.used_bytes(s.role),
                remark=m.servers.remark(s.role),
                trouble=m.servers.trouble(s.role),
            )
            for s in m.servers.running()
        ]
        with _connected(m, "queue") as queue, _connected(m, "state") as state:
            slots = [_slot_status(m, v, _look(queue, state, v)) for v in (s.view() for s in m.deployments.slots())]
        return pb.StatusReply(
            node=m.settings.node,
            driver=m.driver.name,
            started_at=m.started_at.isoformat(timespec="seconds"),
            slots=slots,
            metrics_address=m.metrics_address,
            servers=servers,
            background_errors=supervised.errors(),
        )

    @stream
    def Logs(self, request: pb.LogsRequest, context: grpc.ServicerContext) -> Iterator[pb.LogLine]:
        stop = threading.Event()
        context.add_callback(stop.set)
        deployment = self._manager.deployments.find(request.deployment)
        for line in logs.read(self._manager, deployment, tail_lines=request.tail_lines, follow=request.follow, stop=stop):
            yield pb.LogLine(at=line.at, instance=line.instance, version=line.version, stream="log", text=line.text)

    @unary
    def Stats(self, request: pb.StatsRequest, context: grpc.ServicerContext) -> pb.StatsReply:
        if request.deployment:
            self._manager.deployments.find(request.deployment)
        with _connected(self._manager, "queue") as queue:
            views = [s.view() for s in self._manager.deployments.slots() if request.deployment in ("", s.deployment)]
            return pb.StatsReply(slots=[slot_stats(self._manager, queue, v) for v in views])

    @unary
    def StateList(self, request: pb.StateListRequest, context: grpc.ServicerContext) -> pb.StateListReply:
        return state_service.listed(self._manager.settings.node, self._states.sessions(request.deployment))

    @stream
    def StateExport(self, request: pb.StateExportRequest, context: grpc.ServicerContext) -> Iterator[pb.StatePart]:
        return state_service.exported(self._states, request.deployment, request.session)

    @unary
    def StateImport(self, request: Iterator[pb.StatePart], context: grpc.ServicerContext) -> pb.StateImportReply:
        return state_service.imported(self._manager, self._states, request)

    @unary
    def StateDrop(self, request: pb.StateDropRequest, context: grpc.ServicerContext) -> pb.StateDropReply:
        record = self._states.drop(request.deployment, request.session, force=request.force)
        return pb.StateDropReply(keys=record.get("keys", 0), bytes=record["bytes"])

    @stream
    def Record(self, request: pb.RecordRequest, context: grpc.ServicerContext) -> Iterator[pb.RecordPart]:
        stop = threading.Event()
        context.add_callback(stop.set)
        return record_service.parts(recording.record(self._manager, request.deployment, request.for_ms / 1000, request.frames, stop))

    @stream
    def DeadList(self, request: pb.DeadListRequest, context: grpc.ServicerContext) -> Iterator[pb.DeadLetter]:
        return dead_service.listed(self._dead, request)

    @unary
    def DeadDrop(self, request: pb.DeadDropRequest, context: grpc.ServicerContext) -> pb.DeadDropReply:
        return pb.DeadDropReply(
            dropped=self._dead.drop(request.deployment, request.ids, everything=request.all, unfinished=request.unfinished)
        )

    @unary
    def DeadReplay(self, request: pb.DeadReplayRequest, context: grpc.ServicerContext) -> pb.DeadReplayReply:
        waiting, timers = self._dead.replay(request.deployment, request.ids, everything=request.all)
        return pb.DeadReplayReply(waiting=waiting, timers=timers)

    @unary
    def DeadAmend(self, request: pb.DeadAmendRequest, context: grpc.ServicerContext) -> pb.DeadAmendReply:
        self._dead.amend(request.deployment, request.id, request.code, request.reason, request.traceback)
        return pb.DeadAmendReply()


def _config(text: str) -> dict[str, object]:
    try:
        config = json.loads(text or "{}")
    except ValueError as e:
        raise UsageError(f"config_json is not JSON: {e}") from None
    if not isinstance(config, dict):
        raise UsageError(f"config_json must be an object, got a {type(config).__name__}")
    return config


@contextlib.contextmanager
def _connected(manager: Manager, role: Role) -> Iterator[Connection | None]:
    """That server, or None while it is away."""
    try:
        conn = manager.servers.glance(role)
    except ServerLost:
        yield None
        return
    with contextlib.closing(conn):
        yield conn


def asked(conn: Connection | None, question: Callable[..., _Answer], *about: str, otherwise: _Answer) -> _Answer:
    """What that server answers, `otherwise` while it is away or still reads its file: a status must not fail for that."""
    with contextlib.suppress(ServerLost):
        return question(conn, *about) if conn else otherwise
    return otherwise


@dataclass(frozen=True)
class SlotReadings:
    """What the servers say of a slot; `broken`: why not all of it could be read."""

    log: slot.SlotStats
    counted: dict[str, float]
    dead_letters: int
    broken: str


def _look(queue: Connection | None, state: Connection | None, v: SlotView) -> SlotReadings:
    """What an operator may have broken concerns its own slot only."""
    prefix = f"udo:{v.deployment}:{v.number}:"
    broken: list[str] = []

    def sound(conn: Connection | None, question: Callable[..., _Answer], *about: str, otherwise: _Answer) -> _Answer:
        try:
            return asked(conn, question, *about, otherwise=otherwise)
        except SlotBroken as e:
            broken.append(str(e))
            return otherwise

    log = sound(queue, slot.slot_stats, prefix, otherwise=slot.SlotStats(0, 0, 0, 0, 0, 0))
    nothing: dict[str, float] = {}
    counted = sound(queue, slot.read_stats, prefix, v.owner.name, otherwise=nothing) if v.owner else nothing
    return SlotReadings(log, counted, sound(state, count, prefix, otherwise=0), "; ".join(broken))


def _slot_status(m: Manager, v: SlotView, looked: SlotReadings) -> pb.SlotStatus:
    log = looked.log
    seen = m.driver.inspect(v.owner.handle) if v.owner and v.owner.handle else None
    image = v.wanted.image if v.wanted else None
    return pb.SlotStatus(
        deployment=v.deployment,
        slot=v.number,
        operator=image.manifest.name if image else "",
        version=image.manifest.version if image else "",
        digest=image.digest if image else "",
        state="broken" if looked.broken else v.state,
        instance=v.owner.name if v.owner else "",
        pid=seen.pid if seen else 0,
        restarts=v.restarts,
        depth_frames=log.depth_frames,
        retained_bytes=log.retained_bytes,
        emitted=log.emitted,
        rss_bytes=seen.rss_bytes if seen else 0,
        last_error=looked.broken or v.last_error,
        pinned=v.pinned,
        lanes=log.lanes,
        dead_letters=looked.dead_letters,
        policy=v.wanted.config.bad_events() if v.wanted else "",
        diff=m.mirrors.describe(v.deployment, v.number),
        canary=next((c.describe() for name, c in m.canaries.running() if (name, c.slot.number) == (v.deployment, v.number)), ""),
    )


def slot_stats(m: Manager, queue: Connection | None, v: SlotView) -> pb.SlotStats:
    """Counters of a slot since this manager knows it: those of former instances included."""
    looked = _look(queue, None, v)
    status, now = _slot_status(m, v, looked), looked.counted
    total = {n: min(v.totals.get(n, 0.0) + now.get(n, 0.0), untrusted.MOST) for n in COUNTED}
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


class RpcServer:
    """The gRPC server on the node's Unix socket, for this user only."""

    def __init__(self, manager: Manager) -> None:
        self._path = manager.settings.socket.absolute()
        self._pool = futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="rpc")
        options = [
            ("grpc.max_metadata_size", _METADATA_BYTES),
            ("grpc.absolute_max_metadata_size", _METADATA_BYTES),
            ("grpc.so_reuseport", 0),
        ]
        self._server = grpc.server(self._pool, options=options)
        self._health = health.HealthServicer()
        rpc.add_NodeManagerServicer_to_server(NodeService(manager), self._server)  # type: ignore[no-untyped-call]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    def start(self) -> None:
        """Listen; the home's lock ensures that a socket file found here is stale."""
        self._path.unlink(missing_ok=True)
        former = os.umask(0o077)
        try:
            bound = self._server.add_insecure_port(f"unix:{self._path}")
        finally:
            os.umask(former)
        if not bound:
            raise Unavailable(f"cannot listen on {self._path}")
        self._server.start()
        for name in ("", SERVICE):
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    def stop(self) -> threading.Event:
        """Refuse new calls, let those under way finish for a moment; the event is set when they have ended."""
        self._health.enter_graceful_shutdown()
        closed = self._server.stop(CLOSE_GRACE_S)
        self._pool.shutdown(wait=False)
        self._path.unlink(missing_ok=True)
        return closed
