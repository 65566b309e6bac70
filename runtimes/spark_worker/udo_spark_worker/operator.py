"""The operator: starts the worker as another process in the same sandbox, and passes it each frame."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NoReturn

import grpc
import pyarrow as pa
from udo_runtime import Operator
from udo_runtime.sdk.api import Context

from udo_spark_worker import udf_worker_pb2 as pb
from udo_spark_worker.execution import MESSAGES, Executions, WorkerGone

_PR_SET_PDEATHSIG = 1
# gRPC's default bound of 4 MiB is less than the size of a frame may be.
_CHANNEL = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class SparkWorker(Operator):
    """Base class of operators that run a worker; subclasses set the worker's command and its UDF. The manifest needs
    `isolation = "process"`.

    Each frame is an execution of its own (Init, one batch, Finish): a frame is answered when the worker has reported that it has finished,
    and nothing is kept between frames, so that a frame can be sent again. A worker that dies takes the operator with it: the engine
    starts both again, and the frame counts as one that killed its operator.
    """

    command: ClassVar[Sequence[str]]  # the worker's program and arguments; it is started in the operator's folder
    payload: ClassVar[bytes | str] = b""  # the UDF's payload, or the name of its file in the operator's folder
    format: ClassVar[str]  # the payload's format, as the worker calls it
    eval_type: ClassVar[str] = ""
    udf_name: ClassVar[str] = ""
    session_conf: ClassVar[Mapping[str, str]] = {}
    time_zone: ClassVar[str] = "UTC"
    # The form in which the worker takes a batch: MESSAGES, a single record batch message, or STREAM, with its schema. It may answer in
    # either form.
    batches: ClassVar[str] = MESSAGES
    output: ClassVar[pa.Schema | None] = None  # the answers' schema, for a worker that must be given it, or answers MESSAGES
    start_s: ClassVar[float] = 30.0

    def open(self, ctx: Context) -> None:
        """Start the worker, and wait until it answers on its socket."""
        folder = Path(sys.modules[type(self).__module__].__file__ or ".").resolve().parent
        payload = self.payload if isinstance(self.payload, bytes) else (folder / self.payload).read_bytes()
        udf = pb.UdfPayload(payload=payload, format=self.format, name=self.udf_name or ctx.operator)
        udf.payload_size, udf.payload_crc32 = len(payload), zlib.crc32(payload)
        if self.eval_type:
            udf.eval_type = self.eval_type
        init = pb.Init(data_format=pb.ARROW, udf=udf, timezone=self.time_zone, session_conf=self.session_conf)
        init.task_context.update({"operator": ctx.operator, "version": ctx.version, "instance": ctx.instance})
        self._folder = tempfile.TemporaryDirectory(prefix="udf-")  # its path is short enough for a socket
        socket = f"{self._folder.name}/worker.sock"
        try:
            self._worker = subprocess.Popen(
                [*self.command, "--id", ctx.instance, "--connection", socket],
                stdin=subprocess.DEVNULL,
                cwd=folder,
                env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **os.environ},  # a Python worker finds the operator's modules
                preexec_fn=_as_sparks,
            )
        except OSError as e:
            raise RuntimeError(f"the worker {self.command[0]!r} cannot be started: {e.strerror}; expected a program as `command`") from e
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=_CHANNEL)
        try:
            self._await_worker()
        except RuntimeError:
            self.close()
            raise
        self._execution = Executions(self._channel, init, self.output, self.batches)

    def _await_worker(self) -> None:
        ready, deadline = grpc.channel_ready_future(self._channel), time.monotonic() + self.start_s
        while not _is_ready(ready):
            if (status := self._worker.poll()) is not None:
                raise RuntimeError(f"the worker {self.command[0]!r} {ended(status)} before it answered on the socket of --connection")
            if time.monotonic() > deadline:
                raise RuntimeError(f"the worker {self.command[0]!r} did not answer on the socket of --connection within {self.start_s:g} s")

    def process_batch(self, batch: pa.RecordBatch, ctx: Context) -> pa.Table | None:
        """The worker's answer to these events."""
        try:
            return self._execution.run(batch)
        except WorkerGone as e:
            self._end_like_the_worker(str(e))

    def close(self) -> None:
        """Stop the worker as Spark does: SIGTERM, then SIGKILL if it does not end."""
        self._channel.close()
        self._worker.terminate()
        try:
            self._worker.wait(5)
        except subprocess.TimeoutExpired:
            self._worker.kill()
            self._worker.wait()
        self._folder.cleanup()

    def _end_like_the_worker(self, why: str) -> NoReturn:
        try:
            status = self._worker.wait(5)
        except subprocess.TimeoutExpired:  # it is alive, but broke off the stream
            self._worker.kill()
            status = self._worker.wait()
        self._folder.cleanup()
        print(f"the worker {self.command[0]!r} {ended(status)}: {why}", file=sys.stderr, flush=True)
        if status < 0:
            os.kill(os.getpid(), -status)
        os._exit(status or 1)  # SystemExit would only fail this batch


def _as_sparks() -> None:
    """Run in the worker before its program begins: reset signals as when Spark starts it, and let it end with the operator."""
    for number in (signal.SIGINT, signal.SIGTERM):  # ignored by the operator
        signal.signal(number, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def ended(status: int) -> str:
    """How a process ended, for a message."""
    return f"was ended by signal {-status}" if status < 0 else f"ended with exit status {status}"


def _is_ready(ready: grpc.Future) -> bool:
    try:
        ready.result(timeout=0.05)
    except grpc.FutureTimeoutError:
        return False
    return True
