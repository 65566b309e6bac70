"""Client of the node manager, for Spark tasks and the command line: calls by Unix socket or mutual TLS that raise our own errors.

Safe in forked workers: nothing is opened before the first call, and each process has channels of its own.
"""

from __future__ import annotations

import copy
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from udo_protocol.certificates import Tls
from udo_protocol.errors import NodeAway, UdoError, Unavailable, Untrusted, UsageError, WaitTimeout, by_code
from udo_protocol.node import channels
from udo_protocol.node.peers import NODE_HEADER, PEER_HEADER
from udo_protocol.proto import node_manager_pb2 as pb
from udo_protocol.proto import node_manager_pb2_grpc as rpc
from udo_protocol.state.carrying import PART_BYTES, Carried

# Trailing metadata of an error; node_manager.rpc.wire stays below it.
_METADATA_BYTES = 64 << 10
# A dead letter holds a whole event, which may be as large as a frame, twice over.
_MESSAGE_BYTES = 256 << 20
_OPTIONS = [
    # Otherwise Ctrl-C just before gRPC starts its thread for a stream leaves a call that nobody ends, and closing the channel hangs.
    (grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1),
    ("grpc.max_metadata_size", _METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", _METADATA_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", _MESSAGE_BYTES),
]
# Added to the time that the node manager itself may wait.
_MARGIN_S = 10.0
# The pause between two checks whether the node that was asked for a lane still has the slots.
_MOVED_LOOK_S = 0.25
# Added for reading the state at a recording's start, and for writing its last frames.
_RECORD_MARGIN_S = 120.0
# Signs of a failed handshake in gRPC's details: its status is that of an unreachable host. A node that dies in a handshake resets it.
_HANDSHAKE_SIGNS = ("handshake", "certificate", "ssl_error", "alert")
# The scheme of an address on another host.
SCHEME = "https://"


def connect_node(address: str | Path, tls: Tls | None = None, peer: str = "") -> NodeClient:
    """The node manager on this Unix socket (a path, or `unix:` and a path), or at https://host:port. The latter needs a certificate
    (`tls`) and only opens lanes, except for another node manager (`peer`: peers.peer_key). Connects at the first call."""
    text = str(address)
    if text.startswith(SCHEME):
        return _RemoteNode(text.rstrip("/"), tls, peer)
    if "://" in text and not text.startswith("unix://"):
        raise UsageError(f"expected a node manager's Unix socket, or {SCHEME}host:port, got {text!r}")
    return NodeClient(text.removeprefix("unix://").removeprefix("unix:"))


def _why(details: str) -> str:
    """gRPC's reason for a failed call, reworded for the caller."""
    if "Connection refused" in details or "No such file" in details:
        return "nothing listens on that socket, so it has ended"
    if "Permission denied" in details:
        return "its socket belongs to another user"
    return "it closed the connection; it was probably stopped or killed"


def parts(carried: Iterable[Carried]) -> Iterator[pb.GroupsPart]:
    """The messages for these writes on a copy."""
    for key, value, sizes, field in carried:
        for at in range(0, max(len(value), 1), PART_BYTES):
            more = at + PART_BYTES < len(value)
            yield pb.GroupsPart(key=key, value=value[at : at + PART_BYTES], sizes=() if more else sizes, field=field, more=more)


class NodeClient:
    """One node manager. Every call raises udo_protocol.errors: NodeAway when nothing listens on the socket, Unavailable when even
    its directory is missing."""

    tls: Tls | None = None  # this side's certificates
    _shown: tuple[tuple[str, str], ...] = ()  # metadata of each call

    def __init__(self, path: str) -> None:
        self.path = path if "://" in path or os.path.isabs(path) else os.path.abspath(path)

    def _channel(self) -> grpc.Channel:
        if not os.path.exists(self.path):
            if not os.path.isdir(home := os.path.dirname(self.path)):
                raise Unavailable(
                    f"no node manager on {self._where()}: there is no directory {home}, so none has ever run there. Is the path correct "
                    "for this host (spark.udo.node, UDO_NODE)? If it is, start a node manager there: udo up"
                )
            raise self._away("there is no such socket")
        return channels.kept(self.path, (), lambda: grpc.insecure_channel(f"unix:{self.path}", options=_OPTIONS))

    def _stub(self) -> Any:
        return rpc.NodeManagerStub(self._channel())  # type: ignore[no-untyped-call]

    def _where(self) -> str:
        return f"{self.path} of host {socket.gethostname()}"

    def _away(self, why: str) -> NodeAway:
        return NodeAway(f"no node manager answers on {self._where()}: {why}. Start one there: udo up (or set spark.udo.node / UDO_NODE)")

    def _error(self, error: grpc.RpcError) -> UdoError:
        status = rpc_status.from_call(error)
        for detail in status.details if status else ():
            info = error_details_pb2.ErrorInfo()
            if detail.Unpack(info) and info.domain == "udo":
                return by_code(info.reason, status.message)
        code = error.code()
        if code == grpc.StatusCode.UNAVAILABLE:
            return self._unavailable(error.details() or "")
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            return WaitTimeout(f"the node manager on {self.path} did not answer in time: {error.details()}")
        if code == grpc.StatusCode.CANCELLED:
            return self._away("it is stopping")
        if code == grpc.StatusCode.UNIMPLEMENTED:
            return UsageError(f"the node manager on {self.path} does not answer this: from other hosts it takes lanes only, or it is older")
        return UdoError(f"the node manager on {self.path} failed: {code.name}: {error.details()}")

    def _unavailable(self, details: str) -> UdoError:
        return self._away(_why(details))

    def _call(self, method: str, request: Any, timeout_s: float | None) -> Any:
        try:
            return getattr(self._stub(), method)(request, timeout=timeout_s, metadata=self._shown)
        except grpc.RpcError as e:
            raise self._error(e) from None

    def _stream(self, method: str, request: Any, timeout_s: float | None) -> Iterator[Any]:
        call = None
        try:
            call = getattr(self._stub(), method)(request, timeout=timeout_s, metadata=self._shown)
            yield from call
        except grpc.RpcError as e:
            raise self._error(e) from None
        finally:
            if call is not None:
                call.cancel()

    def on(self, node: str) -> NodeClient:
        """A client of the named node, by way of this one: for figures, logs, state, recordings and dead letters; UsageError for others."""
        other = copy.copy(self)
        other._shown = ((NODE_HEADER, node),)
        return other

    def passed_on(self, method: str, request: Any, timeout_s: float | None, *, streamed: bool) -> Any:
        """The answer, or answers, to a method by name, for a node manager that passes on a call."""
        return (self._stream if streamed else self._call)(method, request, timeout_s)

    def open_lane(self, request: pb.OpenLaneRequest) -> pb.OpenLaneReply:
        """The slots of the deployment `name`, `name@version` or `name@sha256:...`; waits up to `wait_ms` for a starting instance."""
        return self._call("OpenLane", request, request.wait_ms / 1000 + _MARGIN_S)  # type: ignore[no-any-return]

    def forward_lane(self, request: pb.OpenLaneRequest, moved: Callable[[], bool]) -> Callable[[], pb.OpenLaneReply]:
        """Forward an `open_lane` that a producer sent to another node: begins the call; the function returned waits for the answer.

        Unavailable once the periodic check `moved` says that the slots are elsewhere: a node that hangs need not be waited for.
        """
        call = self._stub().OpenLane.future(request, timeout=request.wait_ms / 1000 + _MARGIN_S)

        def answer() -> pb.OpenLaneReply:
            while True:
                try:
                    return call.result(timeout=_MOVED_LOOK_S)  # type: ignore[no-any-return]
                except grpc.FutureTimeoutError:
                    if moved():
                        call.cancel()
                        raise Unavailable(f"slots of deployment {request.deployment!r} have left the node on {self.path}") from None
                except grpc.RpcError as e:
                    raise self._error(e) from None

        return answer

    def deploy(self, name: str, operator: str, version: str, digest: str = "", config_json: str = "{}", wait_ms: int = 60_000) -> str:
        """Make an operator callable on this node only (without the registry); returns the instance."""
        request = pb.DeployRequest(name=name, operator=operator, version=version, digest=digest, config_json=config_json, wait_ms=wait_ms)
        return str(self._call("Deploy", request, wait_ms / 1000 + _MARGIN_S).instance)

    def undeploy(self, name: str, *, drop_state: bool = False) -> None:
        """Stop a deployment and remove its data; Conflict if that includes keyed state, unless `drop_state`."""
        self._call("Undeploy", pb.UndeployRequest(name=name, drop_state=drop_state), 60)

    def update(
        self, name: str, version: str, digest: str = "", config_json: str = "", timeout_s: float = 180.0
    ) -> Iterator[pb.UpdateEvent]:
        """Replace the version on this node only; yields progress, ending with the event `done` or `failed`."""
        return self._stream("Update", pb.UpdateRequest(name=name, version=version, digest=digest, config_json=config_json), timeout_s)

    def scale(self, name: str, slots: int, wait_s: float = 120.0) -> None:
        """Set the number of slots of a deployment of this node only; returns once they serve and have their share of the key groups."""
        request = pb.ScaleRequest(deployment=name, slots=slots, wait_ms=round(wait_s * 1000))
        self._call("Scale", request, wait_s * 2 + _MARGIN_S)

    def prepare_scale_out(self, name: str, slots: int, strategy: str = "", refresh_s: float = 0.0, wait_s: float = 120.0) -> None:
        """Prepare a scale-out of a keyed deployment to `slots` slots; 0 cancels it. Returns when it is ready, or wholly undone."""
        wait_ms, refresh_ms = round(wait_s * 1000), round(refresh_s * 1000)
        request = pb.PrepareScaleOutRequest(deployment=name, slots=slots, strategy=strategy, refresh_ms=refresh_ms, wait_ms=wait_ms)
        self._call("PrepareScaleOut", request, wait_s * 2 + _MARGIN_S)

    def move_groups(
        self, name: str, groups: Iterable[int], to: int, strategy: str = "", wait_s: float = 120.0, node: str = ""
    ) -> Iterator[pb.MoveEvent]:
        """Move key groups to slot `to` (over nodes: of `node`); the last event is `done`. WaitTimeout after `wait_s`; the move goes on."""
        moved = pb.MoveGroupsRequest(deployment=name, groups=groups, to_slot=to, strategy=strategy, to_node=node)
        moved.wait_ms = round(wait_s * 1000)
        return self.forward_move(moved)

    def forward_move(self, request: pb.MoveGroupsRequest) -> Iterator[pb.MoveEvent]:
        """Forward a `move_groups` that another node received."""
        return self._stream("MoveGroups", request, request.wait_ms / 1000 + _MARGIN_S)

    def ready_to_take(self, name: str, slot: int) -> pb.ReadyToTakeReply:
        """Ask, before a move from another node, for the slot's place among those of this node. Conflict if it cannot take groups now."""
        return self._call("ReadyToTake", pb.ReadyToTakeRequest(deployment=name, slot=slot), _MARGIN_S)  # type: ignore[no-any-return]

    def read_groups_ahead(self, header: pb.GroupsPart, carried: Iterable[Carried], timeout_s: float = 1200.0) -> None:
        """Send what key groups have that are going to move to that slot, whose instance reads it (udo_protocol/state/carrying.py)."""
        self._call("ReadGroupsAhead", chain([header], parts(carried)), timeout_s)

    def take_groups(self, header: pb.GroupsPart, carried: Iterable[Carried], timeout_s: float = 600.0) -> None:
        """Send key groups that were handed over to that slot."""
        self._call("TakeGroups", chain([header], parts(carried)), timeout_s)

    def adopt_groups(self, name: str, slot: int, version: int, placement_json: str, wait_s: float) -> None:
        """Let that slot continue with the key groups that were sent to it; returns when it owns them durably."""
        request = pb.AdoptGroupsRequest(deployment=name, slot=slot, version=version, placement_json=placement_json)
        request.wait_ms = round(wait_s * 1000)
        self._call("AdoptGroups", request, wait_s + _MARGIN_S)

    def places(self, name: str, *, here: bool = False) -> pb.PlacesReply:
        """The slots of a deployment over nodes, by place, with their key groups; `here`: only the node's own, without key groups."""
        return self._call("Places", pb.PlacesRequest(deployment=name, here=here), _MARGIN_S * 3)  # type: ignore[no-any-return]

    def hand_over_runs(self, name: str, source: str, to: str) -> None:
        """Copy the order of runs that node `source` keeps for a deployment over nodes to node `to`."""
        self._call("HandOverRuns", pb.HandOverRunsRequest(deployment=name, from_node=source, to_node=to), _MARGIN_S * 6)

    def take_runs(self, request: pb.TakeRunsRequest) -> None:
        """Add these runs to those that the node keeps."""
        self._call("TakeRuns", request, _MARGIN_S * 3)

    def diff(self, name: str, version: str, digest: str = "", *, for_s: float, examples: int = 1000) -> Iterator[pb.DiffEvent]:
        """Compare a version with the serving one in all slots, over nodes on all of them; closing the iterator ends it before `for_s`."""
        request = pb.DiffRequest(name=name, version=version, digest=digest, for_ms=round(for_s * 1000), examples=examples)
        return self._stream("Diff", request, None)

    def status(self) -> pb.StatusReply:
        """Slots and servers of the node."""
        return self._call("Status", pb.StatusRequest(), _MARGIN_S)  # type: ignore[no-any-return]

    def stats(self, deployment: str = "") -> pb.StatsReply:
        """Counters of a deployment's slots; of all deployments by default."""
        return self._call("Stats", pb.StatsRequest(deployment=deployment), _MARGIN_S)  # type: ignore[no-any-return]

    def signals(self, deployment: str = "") -> pb.SignalsReply:
        """The measurements of the node's monitor for a deployment's slots over the last seconds; of all deployments by default."""
        return self._call("Signals", pb.SignalsRequest(deployment=deployment), _MARGIN_S)  # type: ignore[no-any-return]

    def decisions(self, deployment: str = "", timeout_s: float = 120.0) -> Iterator[pb.DecisionLines]:
        """The journal of decisions about a deployment's slots on this node, segment by segment; of all deployments by default."""
        return self._stream("Decisions", pb.DecisionsRequest(deployment=deployment), timeout_s)

    def usage(self, deployment: str = "") -> pb.UsageReply:
        """The resources that a deployment, also an undeployed one, has used on this node so far; of each deployment by default."""
        return self._call("Usage", pb.UsageRequest(deployment=deployment), _MARGIN_S)  # type: ignore[no-any-return]

    def logs(self, deployment: str, *, follow: bool = False, tail_lines: int = 0, timeout_s: float | None = None) -> Iterator[pb.LogLine]:
        """The log lines of its instances (the last `tail_lines`; 0: all that are kept); with `follow` until the iterator is closed."""
        return self._stream("Logs", pb.LogsRequest(deployment=deployment, follow=follow, tail_lines=tail_lines), timeout_s)

    def sessions(self, deployment: str = "") -> pb.StateListReply:
        """Keyed sessions of a deployment; of all deployments by default."""
        return self._call("StateList", pb.StateListRequest(deployment=deployment), _MARGIN_S)  # type: ignore[no-any-return]

    def export_state(self, deployment: str, session: str, timeout_s: float = 600.0, *, here: bool = False) -> Iterator[pb.StatePart]:
        """The state of a session at its newest checkpoint: a header, then the pieces of its groups."""
        return self._stream("StateExport", pb.StateExportRequest(deployment=deployment, session=session, here=here), timeout_s)

    def import_state(self, parts: Iterator[pb.StatePart], timeout_s: float = 600.0) -> pb.StateImportReply:
        """Write a session: a header, then pieces. Conflict while it is in use, or if it exists and is not to be replaced."""
        return self._call("StateImport", parts, timeout_s)  # type: ignore[no-any-return]

    def drop_state(self, deployment: str, session: str, *, force: bool = False, timeout_s: float = 600.0) -> pb.StateDropReply:
        """Remove a session. Conflict while it is in use, unless forced."""
        request = pb.StateDropRequest(deployment=deployment, session=session, force=force)
        return self._call("StateDrop", request, timeout_s)  # type: ignore[no-any-return]

    def record(self, deployment: str, for_s: float, frames: int = 0, slot: int | None = None) -> Iterator[pb.RecordPart]:
        """Record the input of a slot (None: the only one) for `for_s` seconds, at most `frames` (0: all). Close it to end it early."""
        request = pb.RecordRequest(deployment=deployment, for_ms=round(for_s * 1000), frames=frames, slot=slot)
        return self._stream("Record", request, for_s + _RECORD_MARGIN_S)

    def dead_letters(
        self, deployment: str = "", ids: Sequence[str] = (), *, unfinished: bool = False, whole: bool = False, timeout_s: float = 120.0
    ) -> Iterator[pb.DeadLetter]:
        """Dead letters of a deployment (default: of all), or by beginnings of their ids; `whole`: with traceback, event, Arrow bytes."""
        request = pb.DeadListRequest(deployment=deployment, ids=ids, unfinished=unfinished, whole=whole)
        return self._stream("DeadList", request, timeout_s)

    def drop_dead_letters(self, deployment: str, ids: Sequence[str] = (), *, everything: bool = False, unfinished: bool = False) -> int:
        """Remove these dead letters, or all of the deployment with `everything`; returns their number."""
        request = pb.DeadDropRequest(deployment=deployment, ids=ids, all=everything, unfinished=unfinished)
        return int(self._call("DeadDrop", request, 60).dropped)

    def replay_dead_letters(self, deployment: str, ids: Sequence[str] = (), *, everything: bool = False) -> pb.DeadReplayReply:
        """Keyed deployments: let the next epoch of their sessions process these again. Conflict if a session has none."""
        request = pb.DeadReplayRequest(deployment=deployment, ids=ids, all=everything)
        return self._call("DeadReplay", request, 60)  # type: ignore[no-any-return]

    def amend_dead_letter(self, deployment: str, letter: str, code: str, reason: str, traceback: str) -> None:
        """Set the new reason of a dead letter that was sent again and failed again."""
        request = pb.DeadAmendRequest(deployment=deployment, id=letter, code=code, reason=reason, traceback=traceback)
        self._call("DeadAmend", request, 60)

    def healthy(self, timeout_s: float = 2.0) -> bool:
        """Whether the node manager serves."""
        try:
            reply = health_pb2_grpc.HealthStub(self._channel()).Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        except (grpc.RpcError, Unavailable, UsageError):
            return False
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    def close(self) -> None:
        """Close this process's channels to the node."""
        channels.close(self.path)


class _RemoteNode(NodeClient):
    """A node manager on another host. Replaced certificates of this side lead to a new channel."""

    def __init__(self, url: str, tls: Tls | None, peer: str) -> None:
        super().__init__(url)
        self._shown = ((PEER_HEADER, peer),) if peer else ()
        self._target = urlsplit(url).netloc
        if not self._target.rpartition(":")[2].isdecimal():
            raise UsageError(f"expected {SCHEME}host:port of a node manager, got {url!r}")
        if tls is None:
            raise UsageError(
                f"{url} needs certificates, since both sides authenticate: a folder with a CA, a certificate and its key (spark.udo.tls, "
                "UDO_TLS; docs/executors.md)"
            )
        self.tls: Tls = tls

    def _channel(self) -> grpc.Channel:
        def new() -> grpc.Channel:
            pem = self.tls.pem()
            credentials = grpc.ssl_channel_credentials(pem.ca, pem.key, pem.certificate)
            return grpc.secure_channel(self._target, credentials, options=_OPTIONS)

        return channels.kept(self.path, self.tls.stamp(), new)

    def _where(self) -> str:
        return self.path

    def _away(self, why: str) -> NodeAway:
        return NodeAway(f"no node manager answers on {self.path}: {why}. Does one run there with --listen?")

    def _unavailable(self, details: str) -> UdoError:
        lowered = details.lower()
        if "connection reset" not in lowered and any(sign in lowered for sign in _HANDSHAKE_SIGNS):
            return Untrusted(
                f"no connection to the node manager on {self.path}, since one side does not accept the other's certificate: {details}. "
                f"Certificates of this side: the folder of {self.tls.ca} (UDO_TLS, spark.udo.tls)"
            )
        return self._away(details)
