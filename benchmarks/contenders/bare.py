"""The floor of `latency`: the same events through two bare Redis lists and an echoing process, by this project's RESP codec or redis-py.

Like the engine-free client, it sends the events that gathered while the last batch was under way. There is no log, numbering, fence,
lease, window, error or schema handling: the remaining costs are the interpreters, Arrow, the server and the waking of processes.

`python -m benchmarks.contenders.bare SOCKET CODEC` echoes until it is terminated.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from redis.connection import UnixDomainSocketConnection

from benchmarks.harness.bringup import server
from benchmarks.harness.rules import InvalidRun
from node_manager.servers.binaries import find_server
from udo_protocol.queue.connection import Connection

SCHEMA = pa.schema([("id", pa.int64()), ("card", pa.int64()), ("amount", pa.float64()), ("at", pa.int64())])
_IDLE_S = 3600.0
# Up to this size, only the reply to RPUSH has come, which comes at once; the reply to BLPOP comes with the answer.
_PUSHED_BYTES = 8


class Lists(Protocol):
    """Access to both lists over one connection."""

    def exchange(self, push: str, data: Any, pop: str) -> Any:
        """Push to one list, then wait for the next element of the other."""

    def pop(self, key: str) -> Any:
        """Wait for the next element of a list."""

    def close(self) -> None:
        """End the connection."""


class OwnCodec:
    """The codec as used on the event path: no bytes are joined, and the thread wakes once."""

    def __init__(self, socket: str) -> None:
        self._conn = Connection(socket)
        self._conn.default_timeout_s = _IDLE_S
        self.close = self._conn.close

    def exchange(self, push: str, data: Any, pop: str) -> Any:
        """See Lists."""
        self._conn.send([("RPUSH", push, data), ("BLPOP", pop, "0")])
        self._conn.sleep_through(_PUSHED_BYTES)
        self._conn.receive()
        return self._conn.receive()[1]

    def pop(self, key: str) -> Any:
        """See Lists."""
        self._conn.send([("BLPOP", key, "0")])
        return self._conn.receive()[1]


class RedisPy:
    """redis-py's connection, parsed by hiredis: the fastest way to use redis-py."""

    def __init__(self, socket: str) -> None:
        self._conn = UnixDomainSocketConnection(path=socket, socket_timeout=_IDLE_S)
        self._conn.connect()
        if "iredis" not in type(self._conn._parser).__name__:
            raise InvalidRun("redis-py does not use hiredis here")
        self.close = self._conn.disconnect

    def exchange(self, push: str, data: Any, pop: str) -> Any:
        """See Lists."""
        self._conn.send_packed_command(self._conn.pack_commands([("RPUSH", push, memoryview(data)), ("BLPOP", pop, "0")]))
        self._conn.read_response()
        return self._conn.read_response()[1]

    def pop(self, key: str) -> Any:
        """See Lists."""
        self._conn.send_command("BLPOP", key, "0")
        return self._conn.read_response()[1]


CODECS: dict[str, Callable[[str], Lists]] = {"own": OwnCodec, "redis-py": RedisPy}


class BareClient:
    """A client: `send` is called from one thread; the client's own thread calls the listener."""

    def __init__(self, lists: Lists, listener: Callable[[pa.RecordBatch], None]) -> None:
        self._lists, self._listener = lists, listener
        self._buffer: deque[dict[str, Any]] = deque()
        self._lock = threading.Lock()
        self._filled = threading.Condition(self._lock)
        self._idle = threading.Event()
        self._sleeps = self._closed = False
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def send(self, event: dict[str, Any]) -> None:
        """Hand over one event."""
        with self._lock:
            self._buffer.append(event)
            if self._sleeps:
                self._sleeps = False
                self._idle.clear()
                self._filled.notify()

    def flush(self, timeout_s: float) -> None:
        """Wait until all events are answered."""
        if not self._idle.wait(timeout_s):
            raise TimeoutError(f"the echo did not answer within {timeout_s:g} s")

    def close(self) -> None:
        """End the thread and the connection."""
        with self._lock:
            self._closed = True
            self._filled.notify()
        self._thread.join(5)
        self._lists.close()

    def _work(self) -> None:
        while True:
            with self._lock:
                while not self._buffer:
                    if self._closed:
                        return
                    self._sleeps = True
                    self._idle.set()
                    self._filled.wait()
                events, self._buffer = list(self._buffer), deque()
            batch = pa.RecordBatch.from_pylist(events, schema=SCHEMA)
            answer = self._lists.exchange("in", batch.serialize(), "out")
            self._listener(pa.ipc.read_record_batch(pa.py_buffer(answer), SCHEMA))


@contextmanager
def bare_client(directory: Path, codec: str, listener: Callable[[pa.RecordBatch], None]) -> Iterator[BareClient]:
    """Run a Redis server and an echo, and yield a client of them."""
    socket = directory / "bare.sock"
    redis = [find_server(None)[0].path, "--port", "0", "--unixsocket", str(socket), "--dir", str(directory), "--save", ""]
    with server(redis, socket), server([sys.executable, "-m", "benchmarks.contenders.bare", str(socket), codec], socket):
        client = BareClient(CODECS[codec](str(socket)), listener)
        try:
            yield client
        finally:
            client.close()


def echo(lists: Lists) -> None:
    """Answer every batch with itself."""
    data = lists.pop("in")
    while True:
        batch = pa.ipc.read_record_batch(pa.py_buffer(data), SCHEMA)
        data = lists.exchange("out", batch.serialize(), "in")


if __name__ == "__main__":
    echo(CODECS[sys.argv[2]](sys.argv[1]))
