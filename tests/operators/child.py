"""An operator's process for tests: it speaks the operator protocol as in docs/operator-protocol.md, and breaks it on request.

Events {a: int64} are answered with {b: a + 1}, except the values in the table below, which cause something else. Keyed by a, it
counts: {b: count}. It uses no SDK on purpose: no code of udo_runtime, only Arrow, Protobuf and MessagePack.
"""

from __future__ import annotations

import mmap
import os
import signal
import socket
import struct
import sys
import time
from pathlib import Path

import msgpack
import pyarrow as pa

from udo_protocol.proto import operator_pb2 as pb

RAISES, EXITS, KILLED, HANGS, CRASHES_ONCE, LIES_ID, LIES_SCHEMA, LIES_BYTES, LIES_KEY = 101, 102, 103, 104, 105, 106, 107, 108, 109
# Tables in shared memory: past its end, in the engine's half, across the end, and bytes that are not a table.
BEHIND, IN_REQUESTS, OVER_THE_END, SHARED_BYTES = 110, 111, 112, 113
# Invalid messages: too long a header, too long a body, a table twice, half a message and then silence, half a message and then the end.
HEADER, BODY, TWICE, HALF, HALF_ENDS = 114, 115, 116, 117, 118
# Keyed: a state that expires beyond the year 9999, a timer that fires beyond it, a timer without a time.
LATE_STATE, LATE_TIMER, NO_TIME = 119, 120, 121
REAL_TIME = 122  # ended by a signal that has no name
STATES = pa.schema([("key", pa.int32()), ("state", pa.binary()), ("expires_us", pa.int64())])
SET = pa.schema([("key", pa.int32()), ("at_us", pa.int64())])


def wide(state: dict[str, int]) -> bytes:
    """Pack a count into four bytes, though fewer would do."""
    return b"\x81\xa1n\xd2" + state["n"].to_bytes(4, "big")


def main() -> None:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(os.environ["UDO_OPERATOR_SOCKET"])

    def read(size: int) -> bytes:
        data = b""
        while len(data) < size:
            if not (part := sock.recv(size - len(data))):
                sys.exit(0)
            data += part
        return data

    memory = mmap.mmap(-1, 1)
    if path := os.environ.get("UDO_OPERATOR_SHARED"):
        memory = mmap.mmap(fd := os.open(path, os.O_RDWR), os.fstat(fd).st_size)
    half = len(memory) // 2

    def send(message: pb.Message, *tables: tuple[int, pa.RecordBatch | bytes]) -> None:
        body = b""
        for kind, batch in tables:
            data = batch if isinstance(batch, bytes) else batch.serialize().to_pybytes()
            message.parts.add(table=kind, bytes=len(data))  # type: ignore[arg-type]
            body += data + bytes(-len(data) % 8)
        head = message.SerializeToString()
        sock.sendall(struct.pack("<II", len(head), len(body)) + head + bytes(-len(head) % 8) + body)

    capabilities = os.environ.get("CAPABILITIES", "keyed,timers,migrate,rehearse").split(",")
    oldest, newest = map(int, os.environ.get("SPEAKS", "1 1").split())
    if "NO_HELLO" in os.environ:
        send(pb.Message(ready=pb.Ready()))
    send(pb.Message(hello=pb.Hello(oldest=oldest, newest=newest, capabilities=capabilities, sdk="test 1")))
    print("started", flush=True)
    while True:
        head_len, body_len = struct.unpack("<II", read(8))
        message = pb.Message.FromString(read(head_len + -head_len % 8)[:head_len])
        body, tables, at = read(body_len), {}, 0
        for part in message.parts:
            if part.HasField("shared_offset"):
                print("shared", flush=True)
                tables[part.table] = memory[part.shared_offset : part.shared_offset + part.bytes]
                continue
            tables[part.table] = body[at : at + part.bytes]
            at += part.bytes + -part.bytes % 8
        kind = message.WhichOneof("kind")
        if kind == "start":
            answer_bytes = message.start.answer_bytes
            incoming, outgoing = (pa.ipc.read_schema(pa.py_buffer(s)) for s in (message.start.input, message.start.output))
            if why := os.environ.get("OPEN_FAILS"):
                send(pb.Message(id=message.id, failure=pb.Failure(type="OpenError", message=why, trace="at open")))
                continue
            send(pb.Message(log=pb.Log(level=pb.Log.WARNING, message=f"opening in version {message.start.version}")))
            send(pb.Message(id=message.id, ready=pb.Ready()))
        elif kind == "stop":
            send(pb.Message(id=message.id, bye=pb.Bye()))
            return
        elif kind in ("data", "rehearse"):
            events = pa.ipc.read_record_batch(pa.py_buffer(tables[pb.Part.EVENTS]), incoming)
            values = events.column("a").to_pylist()
            print(kind, len(values), values[:3], flush=True)
            answer = pb.Message(id=message.id, answer=pb.Answer())
            if RAISES in values:
                failure = pb.Failure(type="TestError", message="101 is not liked", trace="at test 101", row=values.index(RAISES))
                send(pb.Message(id=message.id, failure=failure))
                continue
            if EXITS in values:
                print("so long", flush=True)
                os._exit(3)
            if KILLED in values:
                os.kill(os.getpid(), signal.SIGKILL)
            if REAL_TIME in values:
                os.kill(os.getpid(), signal.SIGRTMIN + 1)
            if HANGS in values:
                time.sleep(600)
            if CRASHES_ONCE in values and not (mark := Path(os.environ["MARK"])).exists():
                mark.touch()
                os._exit(9)
            if HEADER in values:
                sock.sendall(struct.pack("<II", (1 << 20) + 1, 0))
                continue
            if BODY in values:
                sock.sendall(struct.pack("<II", 0, answer_bytes + 1))
                continue
            if HALF in values or HALF_ENDS in values:
                sock.sendall(struct.pack("<II", 16, 64) + b"\x08")
                if HALF_ENDS in values:
                    os._exit(4)
                continue
            if TWICE in values:
                rows = pa.RecordBatch.from_pydict({"b": values}, schema=outgoing)
                send(answer, (pb.Part.ROWS, rows), (pb.Part.ROWS, rows))
                continue
            if LIES_ID in values:
                answer.id += 1
            lies = {BEHIND: 2 * half, IN_REQUESTS: 0, OVER_THE_END: 2 * half - 8, SHARED_BYTES: half}
            for at_byte in (lies[value] for value in values if value in lies):
                memory[half : half + 64] = b"\xff" * 64
                answer.parts.add(table=pb.Part.ROWS, bytes=64, shared_offset=at_byte)
                send(answer)
                break
            if answer.parts:
                continue
            if LIES_BYTES in values:
                send(answer, (pb.Part.ROWS, b"\xff" * 64))
                continue
            if LIES_SCHEMA in values:
                send(answer, (pb.Part.ROWS, pa.RecordBatch.from_pydict({"x": ["a"], "y": ["b"]})))
                continue
            if pb.Part.KEYS not in tables:
                send(answer, (pb.Part.ROWS, pa.RecordBatch.from_pydict({"b": [a + 1 for a in values]}, schema=outgoing)))
                continue
            kinds = pa.schema([("key", pa.binary()), ("state", pa.binary()), ("expires_us", pa.int64())])
            keys = pa.ipc.read_record_batch(pa.py_buffer(tables[pb.Part.KEYS]), kinds).to_pylist()
            index = pa.ipc.read_record_batch(pa.py_buffer(tables[pb.Part.INDEX]), pa.schema([("key", pa.int32())])).column(0).to_pylist()
            counts = [msgpack.unpackb(k["state"])["n"] if k["state"] else 0 for k in keys]
            answers = []
            for key in index:
                counts[key] += 1
                answers.append(counts[key])
            numbers = [len(keys)] if LIES_KEY in values else list(range(len(keys)))
            pack = wide if "WIDE" in os.environ else msgpack.packb
            states = [pack({"n": counts[n % len(keys)]}) for n in numbers]
            expires = [1 << 60 if LATE_STATE in values else None] * len(numbers)
            changed = pa.RecordBatch.from_pydict({"key": numbers, "state": states, "expires_us": expires}, schema=STATES)
            times = [at for value, at in ((LATE_TIMER, -(1 << 60)), (NO_TIME, None)) if value in values]
            timers = pa.RecordBatch.from_pydict({"key": [0] * len(times), "at_us": times}, schema=SET)
            rows = pa.RecordBatch.from_pydict({"b": answers}, schema=outgoing)
            send(answer, (pb.Part.ROWS, rows), (pb.Part.STATES, changed), (pb.Part.SET, timers))


if __name__ == "__main__":
    main()
