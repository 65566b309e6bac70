"""A worker for Spark's protocol for external UDFs, with the messages that Spark itself ships, that does not trust its engine.

Its payload is Python source with a function `run(batch)`, which yields record batches; its format is `python-source`. A message out of
the order that Spark's protocol demands, or with another schema than Init's, is a ProtocolError.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import traceback
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import common_pb2
import grpc
import pyarrow as pa
import udf_message_pb2 as pb


class Broken(Exception):
    """The engine broke the protocol."""


class Ended(Exception):
    """The engine cancelled the execution."""


class Session:
    """An execution of the worker."""

    def __init__(self, requests: Iterator[Any]) -> None:
        self._requests = requests

    def run(self) -> Iterator[Any]:
        """Answer one stream as the worker."""
        try:
            try:
                yield from self._init()
            except Broken as e:
                yield control(init=pb.InitResponse(error=pb.ExecutionError(protocol=pb.ProtocolError(message=str(e)))))
                self._cancelled()
            except Exception as e:
                yield control(init=pb.InitResponse(error=user(e)))
                self._cancelled()
            try:
                yield from self._data()
            except (Broken, Ended):
                raise
            except Exception as e:
                yield control(error=pb.ErrorResponse(error=user(e)))
                self._cancelled()
            yield control(finish=pb.FinishResponse(metrics={"rows": "any"}))
        except Broken as e:
            yield control(error=pb.ErrorResponse(error=pb.ExecutionError(protocol=pb.ProtocolError(message=str(e)))))
            yield control(cancel=pb.CancelResponse())
        except Ended:
            yield control(cancel=pb.CancelResponse())

    def _next(self) -> tuple[str, Any]:
        request = next(self._requests, None)
        if request is None:
            raise Broken("the engine half-closed the stream before its outcome was known")
        if request.WhichOneof("request") == "data":
            return "data", request.data.data
        kind = request.control.WhichOneof("control")
        if kind == "cancel":
            raise Ended
        return kind, getattr(request.control, kind)

    def _cancelled(self) -> None:
        while True:
            self._next()  # raises Ended; earlier requests in flight are ignored

    def _init(self) -> Iterator[Any]:
        kind, init = self._next()
        if kind != "init" or init.data_format != common_pb2.ARROW or init.udf.format != "python-source":
            raise Broken(f"expected Init for Arrow and python-source, got {kind}")
        payload, last = init.udf.payload, not init.is_chunking_payload
        while not last:
            kind, chunk = self._next()
            if kind != "payload" or not chunk.data:
                raise Broken(f"expected a chunk of the payload, got {kind}")
            payload, last = payload + chunk.data, chunk.last
        if len(payload) != init.udf.payload_size or zlib.crc32(payload) != init.udf.payload_crc32:
            raise Broken("the payload is not what was announced")
        self._input = pa.ipc.read_schema(pa.py_buffer(init.input_schema))
        self._output = pa.ipc.read_schema(pa.py_buffer(init.output_schema)) if init.HasField("output_schema") else None
        made = {"init": init}
        exec(compile(payload, "udf.py", "exec"), made)
        self._function = made["run"]
        yield control(init=pb.InitResponse(data=b"opaque"))

    def _data(self) -> Iterator[Any]:
        while True:
            kind, data = self._next()
            if kind == "finish":
                return
            if kind != "data" or not data:
                raise Broken(f"expected a batch or Finish, got {kind}")
            for answer in self._function(self._read(data)):
                yield pb.UdfResponse(data=pb.DataResponse(data=self._write(answer)))

    def _read(self, data: bytes) -> pa.RecordBatch:
        if pa.ipc.read_message(data).type == "record batch":
            return pa.ipc.read_record_batch(pa.py_buffer(data), self._input)
        (batch,) = pa.ipc.open_stream(io.BytesIO(data))
        if batch.schema != self._input:
            raise Broken(f"expected batches of {self._input}, got {batch.schema}")
        return batch

    def _write(self, answer: Any) -> bytes:
        if isinstance(answer, bytes):
            return answer
        if self._output is not None:
            return answer.serialize().to_pybytes()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, answer.schema) as writer:
            writer.write_batch(answer)
        return sink.getvalue().to_pybytes()


def control(**message: Any) -> Any:
    return pb.UdfResponse(control=pb.UdfControlResponse(**message))


def user(e: Exception) -> Any:
    said = pb.UserError(message=str(e), traceback="".join(traceback.format_exception(e)), error_class=type(e).__name__)
    return pb.ExecutionError(user=said)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--id", required=True)
    parser.add_argument("--connection", required=True)
    options = parser.parse_args()
    print(f"worker {options.id} is {os.getpid()}", file=sys.stderr, flush=True)
    handler = grpc.stream_stream_rpc_method_handler(
        lambda requests, _: Session(requests).run(),
        request_deserializer=pb.UdfRequest.FromString,
        response_serializer=pb.UdfResponse.SerializeToString,
    )
    server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.max_receive_message_length", -1)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("org.apache.spark.udf.worker.UdfWorker", {"Execute": handler}),))
    server.add_insecure_port(f"unix:{options.connection}")
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
