"""The gRPC service of a node: requests to the manager, answers back. No decisions here."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from concurrent import futures

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from elasticity.scaling.scale_out import REFRESH_S, STRATEGY
from node_manager.admin import logs, recording
from node_manager.admin.dead_letters import DeadLetters
from node_manager.admin.state import States
from node_manager.config import DeploymentConfig, InstanceConfig
from node_manager.deployments.lanes import Lane, QueryRun, require_groups
from node_manager.homes import SessionRequest
from node_manager.manager import Manager
from node_manager.rpc import control_service, dead_service, move_service, record_service, replica_service, state_service
from node_manager.rpc.diff_across import diff_across
from node_manager.rpc.forwarding import Forwarding
from node_manager.rpc.lane_across import open_across
from node_manager.rpc.slot_status import connected, group_map_of, look, slot_stats, slot_status
from node_manager.rpc.state_across import export_across, import_across
from node_manager.rpc.wire import stream, unary
from node_manager.slots.loading import Wanted
from node_manager.trials.mirrors import MirrorFindings
from udo_protocol import supervised
from udo_protocol.errors import NodeAway, NotFound, Unavailable, UsageError
from udo_protocol.formats.schema import to_ipc
from udo_protocol.limits import DEFAULT, KEY_GROUPS
from udo_protocol.proto import node_manager_pb2 as pb
from udo_protocol.proto import node_manager_pb2_grpc as rpc
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.registry.wanted import WantedDeployment
from udo_protocol.state.placement import Placement

SERVICE = "udo.v1.NodeManager"
# Every OpenLane, deploy and log follower holds a thread while it waits.
THREADS = 64
_METADATA_BYTES = 64 << 10
CLOSE_GRACE_S = 2.0
# How often to look for a deployment that is about to be here.
_AWAITED_POLL_S = 0.05
OPTIONS = [
    ("grpc.max_metadata_size", _METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", _METADATA_BYTES),
    ("grpc.so_reuseport", 0),
]


class NodeService(rpc.NodeManagerServicer):
    """See node_manager.proto. `queue`: the queue server's address for callers; '' for its socket."""

    def __init__(self, manager: Manager, queue: str = "") -> None:
        self._manager = manager
        self._queue = queue or str(manager.servers.socket("queue"))
        self._states = States(manager)
        self._dead = DeadLetters(manager)

    @unary
    def OpenLane(self, request: pb.OpenLaneRequest, context: grpc.ServicerContext) -> pb.OpenLaneReply:
        return self.open_lane(request)

    def open_lane(self, request: pb.OpenLaneRequest) -> pb.OpenLaneReply:
        """OpenLane, by gRPC or by HTTP. A deployment that may be about to be here is waited for: tasks may call a new node, or one whose
        disk was lost, before its registry has told it what to serve."""
        deadline = time.monotonic() + request.wait_ms / 1000
        while True:
            try:
                return self._opened(request)
            except NotFound:
                why = "" if request.here else self._manager.lanes.awaited(request.deployment.partition("@")[0])
                if not why:
                    raise
                if time.monotonic() > deadline:
                    raise NodeAway(why) from None
            time.sleep(_AWAITED_POLL_S)

    def _opened(self, request: pb.OpenLaneRequest) -> pb.OpenLaneReply:
        across = self._manager.across
        placed = across.find(request.deployment.partition("@")[0])
        if placed and not request.here:
            return open_across(across, self._manager.settings.node, placed, request, lambda asked: self._open(asked, placed))
        return self._open(request, placed)

    def _open(self, request: pb.OpenLaneRequest, placed: Placement | None) -> pb.OpenLaneReply:
        """Open a lane in this node's own slots."""
        lane = self._manager.lanes.open(
            request.deployment,
            session=request.session,
            epoch=request.epoch,
            pin_epoch=request.pin_epoch,
            schema=request.input_schema,
            wait_s=request.wait_ms / 1000,
        )
        run, version = self._run(request, lane, placed)
        manifest, wanted, groups = lane.image.manifest, lane.slot.wanted, request.key_groups or KEY_GROUPS
        if manifest.key:
            require_groups(request.deployment, groups, wanted)
        routes = self._manager.lanes.begun(lane, request.session, request.lane)
        limits = wanted.config.slot_limits if wanted else DEFAULT
        addresses = [self._address(slot.keys, lane.run_id, route) for slot, route in zip(lane.slots, routes, strict=True)]
        several = pb.GroupMap(version=lane.groups.version, slots=lane.groups.places()) if lane.groups and len(addresses) > 1 else None
        return pb.OpenLaneReply(
            operator=manifest.name,
            version=manifest.version,
            digest=lane.image.digest,
            input_schema=to_ipc(manifest.input_schema),
            output_schema=to_ipc(manifest.output_schema),
            slots=addresses,
            groups=several,
            route=routes[0],
            node=self._manager.settings.node,
            window_frames=limits.window_frames,
            answer_timeout_ms=int((wanted or Wanted(lane.image, InstanceConfig())).patience_s * 1000),
            frame_bytes=limits.frame_bytes,
            retained_bytes=limits.retained_bytes,
            lane_ttl_ms=limits.lane_ttl_ms,
            run=run,
            session_version=version,
            key=manifest.key,
            timed=manifest.event_time is not None,
            policy=wanted.config.policy if wanted else "",
            backoff_ceiling_us=limits.backoff_ceiling_us,
        )

    def _run(self, request: pb.OpenLaneRequest, lane: Lane, placed: Placement | None) -> tuple[int, int]:
        """The place of a query's run, and the version of its session's map; (0, 0) for a batch job."""
        if not request.run:
            return 0, 0
        lanes, base = self._manager.lanes, request.deployment.partition("@")[0]
        version = lanes.require_home(lane, SessionRequest(base, request.session, request.epoch, request.stored, request.start_empty))
        if request.run_elsewhere:
            return 0, version
        run = QueryRun(request.session, request.run, request.call, request.plan, request.stored)
        return lanes.run_order(lane, placed, run, request.wait_ms / 1000), version

    def _address(self, keys: SlotKeys, run_id: str, route: int) -> pb.SlotAddress:
        """The address of a slot for a lane, and the lane's login."""
        login, queue = self._manager.servers.lanes(keys), self._queue
        node = self._manager.settings.node
        user, password = login.user, login.password
        return pb.SlotAddress(prefix=keys.prefix, queue_socket=queue, run_id=run_id, user=user, password=password, route=route, node=node)

    @unary
    def Deploy(self, request: pb.DeployRequest, context: grpc.ServicerContext) -> pb.DeployReply:
        config = _config(request.config_json)
        wanted = WantedDeployment(request.name, request.operator, request.version, request.digest, config=config)
        return pb.DeployReply(instance=self._manager.deploy(wanted, request.wait_ms / 1000))

    @unary
    def Undeploy(self, request: pb.UndeployRequest, context: grpc.ServicerContext) -> pb.UndeployReply:
        self._manager.undeploy(request.name, drop_state=request.drop_state)
        return pb.UndeployReply()

    @stream
    def Update(self, request: pb.UpdateRequest, context: grpc.ServicerContext) -> Iterator[pb.UpdateEvent]:
        config = DeploymentConfig(_config(request.config_json)) if request.config_json else None
        for step in self._manager.updates.update(request.name, request.version, request.digest, config):
            yield pb.UpdateEvent(phase=step.phase, detail=step.detail, at_ms=step.at_ms, error_code=step.error_code)

    @unary
    def Scale(self, request: pb.ScaleRequest, context: grpc.ServicerContext) -> pb.ScaleReply:
        name = request.deployment
        self._manager.deployments.require_local(self._manager.deployments.find(name), f"udo scale {name}")
        self._manager.ask_slots(name, request.slots, request.wait_ms / 1000)
        return pb.ScaleReply()

    @unary
    def PrepareScaleOut(self, request: pb.PrepareScaleOutRequest, context: grpc.ServicerContext) -> pb.PrepareScaleOutReply:
        r, wait_s = request, request.wait_ms / 1000
        if r.slots:
            strategy, refresh_s = r.strategy or STRATEGY, r.refresh_ms / 1000 or REFRESH_S
            self._manager.scale_outs.prepare(r.deployment, r.slots, strategy, refresh_s, wait_s, by_hand=True)
        else:
            self._manager.deployments.find(r.deployment)
            self._manager.scale_outs.stand_down(r.deployment, wait_s)
        return pb.PrepareScaleOutReply()

    @stream
    def MoveGroups(self, request: pb.MoveGroupsRequest, context: grpc.ServicerContext) -> Iterator[pb.MoveEvent]:
        return move_service.moved(self._manager, request)

    @unary
    def ReadyToTake(self, request: pb.ReadyToTakeRequest, context: grpc.ServicerContext) -> pb.ReadyToTakeReply:
        found = self._manager.moves.takes.ready(request.deployment, request.slot)
        return pb.ReadyToTakeReply(place=found.place, reads_ahead=found.reads_ahead)

    @unary
    def ReadGroupsAhead(self, request: Iterator[pb.GroupsPart], context: grpc.ServicerContext) -> pb.ReadGroupsAheadReply:
        return move_service.read_ahead(self._manager, request, context.is_active)

    @unary
    def TakeGroups(self, request: Iterator[pb.GroupsPart], context: grpc.ServicerContext) -> pb.TakeGroupsReply:
        return move_service.taken(self._manager, request)

    @unary
    def AdoptGroups(self, request: pb.AdoptGroupsRequest, context: grpc.ServicerContext) -> pb.AdoptGroupsReply:
        placement = json.loads(request.placement_json)
        self._manager.moves.takes.adopt(request.deployment, request.slot, request.version, placement, request.wait_ms / 1000)
        return pb.AdoptGroupsReply()

    @unary
    def Places(self, request: pb.PlacesRequest, context: grpc.ServicerContext) -> pb.PlacesReply:
        return move_service.places(self._manager, request)

    @unary
    def HandOverRuns(self, request: pb.HandOverRunsRequest, context: grpc.ServicerContext) -> pb.HandOverRunsReply:
        move_service.hand_over_runs(self._manager, request)
        return pb.HandOverRunsReply()

    @unary
    def TakeRuns(self, request: pb.TakeRunsRequest, context: grpc.ServicerContext) -> pb.TakeRunsReply:
        move_service.take_runs(self._manager, request)
        return pb.TakeRunsReply()

    @stream
    def CopySlot(self, request: pb.CopySlotRequest, context: grpc.ServicerContext) -> Iterator[pb.SlotCopyPart]:
        return replica_service.copied(self._manager, request)

    @unary
    def FollowSlot(self, request: pb.FollowSlotRequest, context: grpc.ServicerContext) -> pb.FollowSlotReply:
        return replica_service.followed(self._manager, request)

    @stream
    def Diff(self, request: pb.DiffRequest, context: grpc.ServicerContext) -> Iterator[pb.DiffEvent]:
        stop = threading.Event()
        context.add_callback(stop.set)
        placed = None if request.here else self._manager.across.find(request.name)
        diff = self._diff(request, stop) if placed is None else diff_across(self._manager.across, placed, request, self._diff, stop)
        for found in diff:
            yield pb.DiffEvent(report_json=json.dumps(found.report.document()), examples_json=found.examples)

    def _diff(self, request: pb.DiffRequest, stop: threading.Event) -> Iterator[MirrorFindings]:
        return self._manager.diff(request.name, request.version, request.digest, request.for_ms / 1000, request.examples, stop)

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
        if relay := m.relay.running():
            process, trouble = relay
            servers.append(pb.ServerStatus(role="relay", socket=m.relay.address, pid=process.pid, version="envoy", trouble=trouble))
        with connected(m, "queue") as queue, connected(m, "state") as state:
            maps = {d.name: group_map_of(m, state, d) for d in m.deployments.all()}
            slots = [slot_status(m, v, look(queue, state, v), maps.get(v.deployment)) for v in (s.view() for s in m.deployments.slots())]
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
        with connected(self._manager, "queue") as queue:
            views = [s.view() for s in self._manager.deployments.slots() if request.deployment in ("", s.deployment)]
            return pb.StatsReply(slots=[slot_stats(self._manager, queue, v) for v in views])

    @unary
    def Signals(self, request: pb.SignalsRequest, context: grpc.ServicerContext) -> pb.SignalsReply:
        return control_service.signals(self._manager, request.deployment)

    @stream
    def Decisions(self, request: pb.DecisionsRequest, context: grpc.ServicerContext) -> Iterator[pb.DecisionLines]:
        return control_service.decisions(self._manager, request.deployment)

    @unary
    def Usage(self, request: pb.UsageRequest, context: grpc.ServicerContext) -> pb.UsageReply:
        return control_service.usage(self._manager, request.deployment)

    @unary
    def StateList(self, request: pb.StateListRequest, context: grpc.ServicerContext) -> pb.StateListReply:
        return state_service.listed(self._manager.settings.node, self._states.sessions(request.deployment))

    @stream
    def StateExport(self, request: pb.StateExportRequest, context: grpc.ServicerContext) -> Iterator[pb.StatePart]:
        name, session, me, across = request.deployment, request.session, self._manager.settings.node, self._manager.across

        def there(node: str) -> Iterator[pb.StatePart]:
            if node == me:
                return state_service.exported(self._states, name, session)
            return across.connect(node).export_state(name, session, here=True)

        if across.find(name) is None or request.here:
            return there(me)
        return export_across(across, name, session, there)

    @unary
    def StateImport(self, request: Iterator[pb.StatePart], context: grpc.ServicerContext) -> pb.StateImportReply:
        return state_service.imported(self._manager, self._states, request, import_across)

    @unary
    def StateDrop(self, request: pb.StateDropRequest, context: grpc.ServicerContext) -> pb.StateDropReply:
        record = self._states.drop(request.deployment, request.session, force=request.force)
        return pb.StateDropReply(keys=record.keys, bytes=record.bytes)

    @stream
    def Record(self, request: pb.RecordRequest, context: grpc.ServicerContext) -> Iterator[pb.RecordPart]:
        stop = threading.Event()
        context.add_callback(stop.set)
        number = request.slot if request.HasField("slot") else None
        found = recording.record(self._manager, request.deployment, number, request.for_ms / 1000, request.frames, stop)
        return record_service.parts(found)

    @stream
    def DeadList(self, request: pb.DeadListRequest, context: grpc.ServicerContext) -> Iterator[pb.DeadLetter]:
        return dead_service.listed(self._manager.settings.node, self._dead, request)

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


class RpcServer:
    """The gRPC server on the node's Unix socket, for this user only."""

    def __init__(self, manager: Manager) -> None:
        self._path = manager.settings.socket.absolute()
        self._pool = futures.ThreadPoolExecutor(THREADS, thread_name_prefix="rpc")
        self._server = grpc.server(self._pool, options=OPTIONS, interceptors=[Forwarding(manager)])
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
