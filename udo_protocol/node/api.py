"""Client of the node manager, for Spark tasks and the command line: calls on a Unix socket, errors as ours.

Safe in forked workers: nothing is opened before the first call, and each process has channels of its own.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import grpc
from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from udo_protocol.errors import NodeAway, UdoError, Unavailable, UsageError, WaitTimeout, by_code
from udo_protocol.proto import node_manager_pb2 as pb
from udo_protocol.proto import node_manager_pb2_grpc as rpc

# What an error may take in trailing metadata; node_manager.rpc.wire keeps below it.
_METADATA_BYTES = 64 << 10
# A dead letter holds a whole event, which may be as large as a frame, twice over.
_MESSAGE_BYTES = 256 << 20
_OPTIONS = [
    ("grpc.max_metadata_size", _METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", _METADATA_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", _MESSAGE_BYTES),
]
# On top of what the node manager itself may wait.
_MARGIN_S = 10.0
# Reading the state at a recording's start, and writing down its last frames.
_RECORD_MARGIN_S = 120.0
_channels: dict[tuple[int, str], grpc.Channel] = {}
_lock = Lock()


def connect_node(address: str | Path) -> NodeClient:
    """The node manager on this Unix socket (a path, or `unix:` and a path). Connects at the first call."""
    return NodeClient(str(address).removeprefix("unix://").removeprefix("unix:"))


def _why(details: str) -> str:
    """gRPC's reason for a failed call, in words for the caller."""
    if "Connection refused" in details or "No such file" in details:
        return "nothing listens on that socket, so it has ended"
    if "Permission denied" in details:
        return "its socket belongs to another user"
    return "it closed the connection; it was probably stopped or killed"


class NodeClient:
    """One node manager. Every call raises udo_protocol.errors; NodeAway when nothing listens on the socket, Unavailable when not
    even its directory is there."""

    def __init__(self, path: str) -> None:
        if not os.path.isabs(path):
            path = os.path.abspath(path)
        self.path = path

    def _channel(self) -> grpc.Channel:
        if not os.path.exists(self.path):
            if not os.path.isdir(home := os.path.dirname(self.path)):
                raise Unavailable(
                    f"no node manager on {self._where()}: there is no directory {home}, so none has ever run there. Is the path correct "
                    "for this host (spark.udo.node, UDO_NODE)? If it is, start a node manager there: udo up"
                )
            raise self._away("there is no such socket")
        key = (os.getpid(), self.path)
        with _lock:
            if key not in _channels:
                _channels[key] = grpc.insecure_channel(f"unix:{self.path}", options=_OPTIONS)
            return _channels[key]

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
            return self._away(_why(error.details() or ""))
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            return WaitTimeout(f"the node manager on {self.path} did not answer in time: {error.details()}")
        if code == grpc.StatusCode.CANCELLED:
            return self._away("it is stopping")
        return UdoError(f"the node manager on {self.path} failed: {code.name}: {error.details()}")

    def _call(self, method: str, request: Any, timeout_s: float) -> Any:
        try:
            return getattr(self._stub(), method)(request, timeout=timeout_s)
        except grpc.RpcError as e:
            raise self._error(e) from None

    def _stream(self, method: str, request: Any, timeout_s: float | None) -> Iterator[Any]:
        call = None
        try:
            call = getattr(self._stub(), method)(request, timeout=timeout_s)
            yield from call
        except grpc.RpcError as e:
            raise self._error(e) from None
        finally:
            if call is not None:
                call.cancel()

    def open_lane(
        self,
        deployment: str,
        lane: str,
        *,
        session: str = "",
        epoch: int = 0,
        pin_epoch: bool = False,
        input_schema: bytes = b"",
        wait_ms: int = 30_000,
        run: str = "",
        call: str = "",
        run_started_ms: int = 0,
        key_groups: int = 0,
        stored: bool = False,
        start_empty: bool = False,
    ) -> pb.OpenLaneReply:
        """The slots of `name`, `name@version` or `name@sha256:...`; waits `wait_ms` for an instance that is starting."""
        request = pb.OpenLaneRequest(
            deployment=deployment,
            lane=lane,
            session=session,
            epoch=epoch,
            pin_epoch=pin_epoch,
            input_schema=input_schema,
            wait_ms=wait_ms,
            run=run,
            call=call,
            run_started_ms=run_started_ms,
            key_groups=key_groups,
            stored=stored,
            start_empty=start_empty,
        )
        return self._call("OpenLane", request, wait_ms / 1000 + _MARGIN_S)  # type: ignore[no-any-return]

    def deploy(self, name: str, operator: str, version: str, digest: str = "", config_json: str = "{}", wait_ms: int = 60_000) -> str:
        """Make an operator callable on this node only (without the registry); answers the instance."""
        request = pb.DeployRequest(name=name, operator=operator, version=version, digest=digest, config_json=config_json, wait_ms=wait_ms)
        return str(self._call("Deploy", request, wait_ms / 1000 + _MARGIN_S).instance)

    def undeploy(self, name: str, *, drop_state: bool = False) -> None:
        """Stop it and remove what it left behind; Conflict if that is keyed state, unless `drop_state`."""
        self._call("Undeploy", pb.UndeployRequest(name=name, drop_state=drop_state), 60)

    def update(
        self, name: str, version: str, digest: str = "", config_json: str = "", timeout_s: float = 180.0
    ) -> Iterator[pb.UpdateEvent]:
        """Replace the version on this node only; yields progress, the last event is `done` or `failed`."""
        return self._stream("Update", pb.UpdateRequest(name=name, version=version, digest=digest, config_json=config_json), timeout_s)

    def diff(self, name: str, version: str, digest: str = "", *, for_s: float, examples: int = 1000) -> Iterator[pb.DiffEvent]:
        """Compare a version with the serving one on this node for `for_s`; closing the iterator ends it. What serves is not touched."""
        request = pb.DiffRequest(name=name, version=version, digest=digest, for_ms=round(for_s * 1000), examples=examples)
        return self._stream("Diff", request, None)

    def status(self) -> pb.StatusReply:
        """Slots and servers of the node."""
        return self._call("Status", pb.StatusRequest(), _MARGIN_S)  # type: ignore[no-any-return]

    def stats(self, deployment: str = "") -> pb.StatsReply:
        """Counters of a deployment's slots, of all of them by default."""
        return self._call("Stats", pb.StatsRequest(deployment=deployment), _MARGIN_S)  # type: ignore[no-any-return]

    def logs(self, deployment: str, *, follow: bool = False, tail_lines: int = 0, timeout_s: float | None = None) -> Iterator[pb.LogLine]:
        """What its instances wrote (the last `tail_lines`, 0 = all that is kept); with `follow` until the iterator is closed."""
        return self._stream("Logs", pb.LogsRequest(deployment=deployment, follow=follow, tail_lines=tail_lines), timeout_s)

    def sessions(self, deployment: str = "") -> pb.StateListReply:
        """Keyed sessions of a deployment, of all of them by default."""
        return self._call("StateList", pb.StateListRequest(deployment=deployment), _MARGIN_S)  # type: ignore[no-any-return]

    def export_state(self, deployment: str, session: str, timeout_s: float = 600.0) -> Iterator[pb.StatePart]:
        """A session as its newest checkpoint left it: a header, then the pieces of its groups."""
        return self._stream("StateExport", pb.StateExportRequest(deployment=deployment, session=session), timeout_s)

    def import_state(self, parts: Iterator[pb.StatePart], timeout_s: float = 600.0) -> pb.StateImportReply:
        """Write a session: a header, then pieces. Conflict while it is in use, or there and not to be replaced."""
        return self._call("StateImport", parts, timeout_s)  # type: ignore[no-any-return]

    def drop_state(self, deployment: str, session: str, *, force: bool = False, timeout_s: float = 120.0) -> pb.StateDropReply:
        """Remove a session. Conflict while it is in use, unless forced."""
        request = pb.StateDropRequest(deployment=deployment, session=session, force=force)
        return self._call("StateDrop", request, timeout_s)  # type: ignore[no-any-return]

    def record(self, deployment: str, for_s: float, frames: int = 0) -> Iterator[pb.RecordPart]:
        """What it answers within `for_s` seconds, `frames` frames at most (0: no bound); ends early when the iterator is closed."""
        request = pb.RecordRequest(deployment=deployment, for_ms=round(for_s * 1000), frames=frames)
        return self._stream("Record", request, for_s + _RECORD_MARGIN_S)

    def dead_letters(
        self, deployment: str = "", ids: Sequence[str] = (), *, unfinished: bool = False, whole: bool = False, timeout_s: float = 120.0
    ) -> Iterator[pb.DeadLetter]:
        """Those of a deployment (of all by default), or those whose ids begin so; `whole`: with traceback, event and Arrow bytes."""
        request = pb.DeadListRequest(deployment=deployment, ids=ids, unfinished=unfinished, whole=whole)
        return self._stream("DeadList", request, timeout_s)

    def drop_dead_letters(self, deployment: str, ids: Sequence[str] = (), *, everything: bool = False, unfinished: bool = False) -> int:
        """Remove these for good, or all of the deployment with `everything`; how many."""
        request = pb.DeadDropRequest(deployment=deployment, ids=ids, all=everything, unfinished=unfinished)
        return int(self._call("DeadDrop", request, 60).dropped)

    def replay_dead_letters(self, deployment: str, ids: Sequence[str] = (), *, everything: bool = False) -> pb.DeadReplayReply:
        """Keyed: let the next epoch of their sessions process these again. Conflict where there is none."""
        request = pb.DeadReplayRequest(deployment=deployment, ids=ids, all=everything)
        return self._call("DeadReplay", request, 60)  # type: ignore[no-any-return]

    def amend_dead_letter(self, deployment: str, letter: str, code: str, reason: str, traceback: str) -> None:
        """It was sent again and failed again: the new reason."""
        request = pb.DeadAmendRequest(deployment=deployment, id=letter, code=code, reason=reason, traceback=traceback)
        self._call("DeadAmend", request, 60)

    def healthy(self, timeout_s: float = 2.0) -> bool:
        """Whether it serves."""
        try:
            reply = health_pb2_grpc.HealthStub(self._channel()).Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        except (grpc.RpcError, Unavailable, UsageError):
            return False
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    def close(self) -> None:
        """Close this process's channel to the node."""
        with _lock:
            channel = _channels.pop((os.getpid(), self.path), None)
        if channel is not None:
            channel.close()
