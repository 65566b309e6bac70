"""Executions by a worker: the messages of an `Execute` stream, in the order that Spark's protocol demands from an engine."""

from __future__ import annotations

from queue import SimpleQueue
from typing import Any

import grpc
import pyarrow as pa

from udo_spark_worker import udf_worker_pb2 as pb

EXECUTE = "/org.apache.spark.udf.worker.UdfWorker/Execute"
STREAM, MESSAGES = "stream", "messages"
# A payload above this size is sent in parts, since gRPC servers take messages of at most 4 MiB by default.
CHUNK_BYTES = 1 << 20


class WorkerFailed(Exception):
    """A failure reported by the worker, usually in user code, with the worker's own traceback."""

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        if traceback:
            self.add_note(traceback)


class WorkerGone(Exception):
    """The connection to the worker is lost: it has died, or has ended the stream without a final message."""


class Executions:
    """Runs batches, each in a stream of its own. `output`: the schema of the answers, if the worker or a reader needs it;
    `batches`: the form in which batches are sent (STREAM or MESSAGES)."""

    def __init__(self, channel: grpc.Channel, init: pb.Init, output: pa.Schema | None, batches: str) -> None:
        if batches not in (STREAM, MESSAGES):
            raise ValueError(f"batches: expected {STREAM!r} or {MESSAGES!r}, got {batches!r}")
        self._execute = channel.stream_stream(
            EXECUTE, request_serializer=pb.UdfRequest.SerializeToString, response_deserializer=pb.UdfResponse.FromString
        )
        self._output, self._streams = output, batches == STREAM
        self._begin = _beginning(init)

    def run(self, batch: pa.RecordBatch) -> pa.Table | None:
        """The worker's answer, of any number of batches; None for none. Raises WorkerFailed or WorkerGone."""
        sent: SimpleQueue[pb.UdfRequest | None] = SimpleQueue()
        stream = self._execute(iter(sent.get, None))
        try:
            return self._run(sent, stream, batch)
        except grpc.RpcError as e:
            raise WorkerGone(f"{e.code().name}: {e.details()}") from None
        finally:
            sent.put(None)
            stream.cancel()

    def _run(self, sent: SimpleQueue[pb.UdfRequest | None], stream: Any, batch: pa.RecordBatch) -> pa.Table | None:
        for message in self._told(batch.schema):
            sent.put(message)
        failure, answers = None, list[pa.RecordBatch]()
        for response in stream:
            kind = response.control.WhichOneof("control") if response.HasField("control") else "data"
            if kind == "data":
                answers += self._read(response.data.data)
            elif kind == "init" and not response.control.init.HasField("error"):
                sent.put(pb.UdfRequest(data=pb.DataRequest(data=_stream(batch) if self._streams else batch.serialize().to_pybytes())))
                sent.put(_control(finish=pb.Finish()))
            elif kind in ("init", "error"):
                failure = getattr(response.control, kind).error
                sent.put(_control(cancel=pb.Cancel(reason="an error")))
            elif kind == "finish" and not response.control.finish.HasField("error") and failure is None:
                return pa.Table.from_batches(answers) if answers else None
            elif kind in ("finish", "cancel"):
                raise _error(failure or getattr(response.control, kind).error)
        raise WorkerGone("it ended the stream without FinishResponse or CancelResponse")

    def _told(self, schema: pa.Schema) -> list[pb.UdfRequest]:
        first, *rest = self._begin
        init = pb.UdfRequest()
        init.CopyFrom(first)
        init.control.init.input_schema = schema.serialize().to_pybytes()
        if self._output is not None:
            init.control.init.output_schema = self._output.serialize().to_pybytes()
        return [init, *rest]

    def _read(self, data: bytes) -> list[pa.RecordBatch]:
        """The batches in an answer: a stream with its schema, or, if the output schema is known, a single record batch message."""
        try:
            if self._output is not None and pa.ipc.read_message(data).type == "record batch":
                return [pa.ipc.read_record_batch(pa.py_buffer(data), self._output)]
            return list(pa.ipc.open_stream(data))
        except (pa.ArrowInvalid, OSError) as e:
            raise WorkerFailed(
                f"the worker answered {len(data):,} bytes that are no Arrow data: expected an Arrow stream, or a record batch message with "
                f"`output` said: {e}"
            ) from None


def _beginning(init: pb.Init) -> list[pb.UdfRequest]:
    """The first messages: Init, and the payload in chunks if it is large."""
    if len(init.udf.payload) <= CHUNK_BYTES:
        return [_control(init=init)]
    whole, chunked = init.udf.payload, pb.Init()
    chunked.CopyFrom(init)
    chunked.udf.payload, chunked.is_chunking_payload = b"", True
    parts = [whole[at : at + CHUNK_BYTES] for at in range(0, len(whole), CHUNK_BYTES)]
    chunks = [pb.PayloadChunk(data=part) for part in parts[:-1]] + [pb.PayloadChunk(data=parts[-1], last=True)]
    return [_control(init=chunked), *(_control(payload=chunk) for chunk in chunks)]


def _control(**message: Any) -> pb.UdfRequest:
    return pb.UdfRequest(control=pb.UdfControlRequest(**message))


def _stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _error(error: pb.ExecutionError) -> WorkerFailed:
    match error.WhichOneof("kind"):
        case "user":
            name = f"{error.user.error_class}: " if error.user.error_class else ""
            return WorkerFailed(f"{name}{error.user.message}", error.user.traceback)
        case "worker":
            return WorkerFailed(f"the worker itself: {error.worker.message}", error.worker.traceback)
        case "protocol":
            return WorkerFailed(f"the protocol was broken: {error.protocol.message}")
    return WorkerFailed("the worker cancelled the execution and said no error")
