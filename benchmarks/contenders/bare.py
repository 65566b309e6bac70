"""The floor of `latency`: the same events through two bare Redis lists and an echoing process.

As the engine-free client it sends what gathered while the last batch was under way. There is no log, numbering, fence, lease,
window, error or schema handling: what is left is the interpreters, Arrow, the server and the waking of processes.

`python -m benchmarks.contenders.bare SOCKET` echoes until it is terminated.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.bringup import server
from node_manager.servers.binaries import find_server
from udo_protocol.queue.connection import Connection

SCHEMA = pa.schema([("id", pa.int64()), ("card", pa.int64()), ("amount", pa.float64()), ("at", pa.int64())])
_WAIT_S = "60"
# The reply to RPUSH comes at once, the one to BLPOP with the answer.
_PUSHED_BYTES = 8


class BareClient:
    """`send` from one thread; the listener is called in the thread of this client."""

    def __init__(self, socket: str, listener: Callable[[pa.RecordBatch], None]) -> None:
        self._conn, self._listener = Connection(socket), listener
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
        """Wait until all is answered."""
        if not self._idle.wait(timeout_s):
            raise TimeoutError(f"the echo did not answer within {timeout_s:g} s")

    def close(self) -> None:
        """End the thread and the connection."""
        with self._lock:
            self._closed = True
            self._filled.notify()
        self._thread.join(5)
        self._conn.close()

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
            self._conn.send([("RPUSH", "in", batch.serialize()), ("BLPOP", "out", _WAIT_S)])
            self._conn.sleep_through(_PUSHED_BYTES)
            self._conn.receive()
            self._listener(pa.ipc.read_record_batch(pa.py_buffer(self._conn.receive()[1]), SCHEMA))


@contextmanager
def bare_client(directory: Path, listener: Callable[[pa.RecordBatch], None]) -> Iterator[BareClient]:
    """A client of an echo over a server of its own."""
    socket = directory / "bare.sock"
    redis = [find_server(None)[0].path, "--port", "0", "--unixsocket", str(socket), "--dir", str(directory), "--save", ""]
    with server(redis, socket), server([sys.executable, "-m", "benchmarks.contenders.bare", str(socket)], socket):
        client = BareClient(str(socket), listener)
        try:
            yield client
        finally:
            client.close()


def echo(socket: str) -> None:
    """Answer every batch with itself."""
    conn = Connection(socket)
    conn.send([("BLPOP", "in", "0")])
    conn.default_timeout_s = 3600.0
    while True:
        batch = pa.ipc.read_record_batch(pa.py_buffer(conn.receive()[1]), SCHEMA)
        conn.send([("RPUSH", "out", batch.serialize()), ("BLPOP", "in", "0")])
        conn.sleep_through(_PUSHED_BYTES)
        conn.receive()


if __name__ == "__main__":
    echo(sys.argv[1])
