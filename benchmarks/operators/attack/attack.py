"""A hostile operator: tries attacks that no operator should be able to carry out, and answers with its results. All are bounded.

`arguments` is a JSON object with the targets outside, so that no attack fails for lack of knowledge. The operator runs in its engine's
process or in one of its own; in the latter case it lies to its engine.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from udo_runtime import Context, Operator
from udo_runtime.engine import replies
from udo_runtime.served import serve

from udo_protocol.errors import UdoError
from udo_protocol.proto import operator_pb2 as pb
from udo_protocol.queue.connection import Connection, Login
from udo_protocol.queue.frame import ERROR

Arguments = dict[str, Any]
_MIB = 1 << 20
_ALONE = "UDO_OPERATOR_SOCKET" in os.environ


def tcp_socket(a: Arguments) -> list[str]:
    """Connect to a port of this machine."""
    return [address for address in a["addresses"] if _works(lambda h=address: socket.create_connection((h, a["tcp_port"]), 2).close())]


def udp_socket(a: Arguments) -> list[str]:
    """Send a datagram to this machine; the receiver sees whether it arrived."""
    sent = []
    for address in a["addresses"]:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            if _works(lambda h=address, s=s: s.sendto(a["token"].encode(), (h, a["udp_port"]))):
                sent.append(address)
    return sent


def docker_socket(a: Arguments) -> list[str]:
    """Connect to Unix sockets that are out of bounds: the Docker daemon's, the node manager's."""

    def connect(path: str) -> None:
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(path)

    return [path for path in a["sockets"] if _works(lambda p=path: connect(p))]


def write_root(a: Arguments) -> list[str]:
    """Leave a file in the system, in the node manager's home or beside its operator."""
    done = []
    for directory in a["directories"]:
        path = os.path.join(directory, a["token"])
        if _works(lambda p=path: Path(p).write_text("x")):
            done.append(directory)
            if directory not in a["looked_at"]:
                os.unlink(path)
    return done


def read_host_files(a: Arguments) -> list[str]:
    """Read secrets that lie on the node."""
    return [path for path in a["secrets"] if _works(lambda p=path: Path(p).read_bytes())]


def other_keys(a: Arguments) -> list[str]:
    """Read a key of another deployment's slot."""
    return [who for who, conn in _logins(a) if a["token"] in _said(conn, "GET", a["key"])]


def flushall(a: Arguments) -> list[str]:
    """Remove everybody's frames."""
    return [who for who, conn in _logins(a) if _said(conn, "FLUSHALL").startswith("b'OK")]


def config(a: Arguments) -> list[str]:
    """Change the server's configuration."""
    return [who for who, conn in _logins(a) if _said(conn, "CONFIG", "SET", "slowlog-max-len", "7").startswith("b'OK")]


def garbage_counters(a: Arguments) -> list[str]:
    """Write impossible values into its own counters."""
    values = ("events_in", "99999999999999999999", "events_out", "-1", "frames", "x", "busy_s", "nan", "p50_ms", "1e400")
    return _to_its_own_keys(a, [("HSET", "stats:{name}", *values)])


def wrong_types(a: Arguments) -> list[str]:
    """Replace every key of its own that others read by one of another type."""
    lists = ("stats:{name}", "ready:{name}", "base", "emitted", "bytes", "lanes", "parked", "pins", "mirrors", "served:{name}", "ends")
    return _to_its_own_keys(a, [c for key in lists for c in (("DEL", key), ("RPUSH", key, "x"))])


def counter_overflow(a: Arguments) -> list[str]:
    """Set its own log's counters beyond 64 bits, or to garbage."""
    return _to_its_own_keys(a, [("SET", "base", "99999999999999999999"), ("SET", "emitted", "garbage")])


def delete_log(a: Arguments) -> list[str]:
    """Delete its own log, and leave a string in its place."""
    return _to_its_own_keys(a, [("DEL", "in"), ("SET", "in", "x")])


def _to_its_own_keys(a: Arguments, commands: list[tuple[str, ...]]) -> list[str]:
    """Send commands on its own slot's keys; the result is judged outside."""
    for who, conn in _logins(a):
        for command, key, *rest in commands:
            _said(conn, command, a["prefix"] + key.format(name=who), *rest)
        break  # with its own login only
    return []


def fork_bomb(a: Arguments) -> list[str]:
    """Start many processes that stay a while."""
    children = []
    try:
        for _ in range(a["processes"]):
            if (pid := os.fork()) == 0:
                time.sleep(8)
                os._exit(0)
            children.append(pid)
        time.sleep(3)  # long enough to be noticed
        return [f"{a['processes']} processes"]
    except BlockingIOError:
        return []
    finally:
        for pid in children:
            os.kill(pid, 9)
            os.waitpid(pid, 0)


def memory_bomb(a: Arguments) -> list[str]:
    """Take much more memory than allowed, and keep it."""
    kept = []
    for _ in range(a["mebibytes"] // 16):
        kept.append(bytearray(os.urandom(4096) * (16 * _MIB // 4096)))
    time.sleep(3)
    return [f"{sum(map(len, kept)) // _MIB} MiB"]


def text_beyond(a: Arguments) -> list[str]:
    """Answer with text that ends far outside of its frame."""
    text = "x" * 12345

    def change(message: bytes) -> bytes:
        before, _, after = message.rpartition(struct.pack("<ii", 0, len(text)))
        return before + struct.pack("<ii", 0, a["end"]) + after

    return _answered_with(text, change)


def many_rows(a: Arguments) -> list[str]:
    """Answer with a frame that claims many more rows than it has bytes for."""

    def change(message: bytes) -> bytes:
        return message.replace(struct.pack("<q", 1), struct.pack("<q", a["rows"]))

    return _answered_with("x", change, rows=a["rows"])


def compressed_bomb(a: Arguments) -> list[str]:
    """Answer with a small frame that unpacks into a large one."""
    batch = pa.record_batch({"result": ["x" * (a["mebibytes"] * _MIB)]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    _, message = pa.ipc.MessageReader.open_stream(sink.getvalue())
    small = message.serialize().to_pybytes()
    return _answered_with("x", lambda _: small)


def giant_error(a: Arguments) -> list[str]:
    """Raise an error with a huge text."""
    raise ValueError("x" * (a["mebibytes"] * _MIB))


def giant_header(a: Arguments) -> list[str]:
    """Answer with a failure whose text this process has not shortened."""
    if _ALONE:
        failure = pb.Failure(message="x" * (a["mebibytes"] * _MIB))
        return _told_once(lambda reply: (pb.Message(id=reply.id, failure=failure), ()))

    def lie(header: Any, batch: Any = None) -> list[bytes]:
        replies.encode = honest
        header.kind, header.failure.message = ERROR, "x" * (a["mebibytes"] * _MIB)
        return honest(header)

    honest, replies.encode = replies.encode, lie
    return []


def _answered_with(text: str, change: Callable[[bytes], bytes], rows: int = 1) -> list[str]:
    """Forge the next answer, once: a frame around a changed message with this text. The caller sees the result."""
    if _ALONE:
        forged = change(pa.record_batch({"result": [text]}).serialize().to_pybytes())
        return _told_once(lambda reply: (reply, [(pb.Part.ROWS, _Forged(forged))]))

    def lie(header: Any, batch: Any = None) -> list[bytes]:
        replies.encode = honest
        header.rows = rows
        message = change(pa.record_batch({"result": [text]}).serialize().to_pybytes())
        head = header.SerializeToString()
        return [struct.pack("<4sHHII", b"UDOF", 1, 0, len(head), len(message)) + head + bytes(-len(head) % 8) + message]

    honest, replies.encode = replies.encode, lie
    return []


class _Forged:
    """Bytes that take the place of a record batch."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def serialize(self) -> bytes:
        """Return the bytes, as a batch does."""
        return self._data


def _told_once(lie: Callable[[Any], tuple[Any, Any]]) -> list[str]:
    """Change the next reply to the engine by `lie`, once."""

    def encode(reply: Any, *_: Any) -> Any:
        serve.encode = honest
        return honest(*lie(reply))

    honest, serve.encode = serve.encode, encode
    return []


def kill_neighbour(a: Arguments) -> list[str]:
    """End another operator's process."""
    return [str(pid) for pid in a["pids"] if _works(lambda p=pid: os.kill(p, 9))]


def exhaust_disk(a: Arguments) -> list[str]:
    """Fill every place that can be written to, and the log."""
    done = []
    for directory in (os.environ["HOME"], *a["directories"]):
        size = _fill(os.path.join(directory, a["token"]), a["mebibytes"])
        if size >= a["mebibytes"]:
            done.append(f"{size} MiB in {directory}")
    with suppress(OSError):
        for _ in range(a["mebibytes"]):
            os.write(1, b"x" * (_MIB - 1) + b"\n")
    return done


def _fill(path: str, mebibytes: int) -> int:
    written, block = 0, b"x" * _MIB
    with suppress(OSError), open(path, "wb", buffering=0) as f:
        try:
            while written < mebibytes:
                written += f.write(block) == _MIB
                if f.tell() < written * _MIB:
                    break
        finally:
            os.unlink(path)
    return written


def _works(step: Callable[[], Any]) -> bool:
    try:
        step()
    except OSError:
        return False
    return True


def _logins(a: Arguments) -> Iterator[tuple[str, Connection]]:
    """Connect with every login: its own, none, the server's default, and those whose passwords it can find."""
    found: list[Login | None] = [None, Login("default", "")]
    socket_path = a["queue"]
    if not _ALONE:
        frame = sys._getframe()
        while not isinstance(own := frame.f_locals.get("conn"), Connection):  # the runtime's own connection is on the stack
            assert frame.f_back is not None
            frame = frame.f_back
        found.insert(0, own.login)
        socket_path = own.path
    for path in a["passwords"]:
        with suppress(OSError, ValueError):
            text = Path(path).read_text()
            known = json.loads(text) if text.startswith("{") else {Path(path).parent.name: text}
            found += [Login(user, password) for user, password in known.items()]
    for login in found:
        with suppress(UdoError):
            conn = Connection(socket_path, login=login)
            try:
                yield login.user if login else "nobody", conn
            finally:
                conn.close()


def _said(conn: Connection, *command: str) -> str:
    try:
        return repr(conn.call(*command))
    except UdoError as e:
        return str(e)


def nothing(arguments: Arguments) -> list[str]:
    """Do nothing, to show whether the operator answers."""
    return []


class Attack(Operator):
    """(attack, arguments) -> its results as a JSON list; empty if it achieved nothing."""

    def process(self, event: dict[str, Any], ctx: Context) -> Iterator[dict[str, Any]]:
        """Carry out one attack."""
        attack: Callable[[Arguments], list[str]] = getattr(sys.modules[__name__], event["attack"])
        yield {"result": json.dumps(attack(json.loads(event["arguments"])))}
