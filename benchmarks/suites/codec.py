"""The benefit of the project's own RESP codec on the event path: the commands of one frame's life, through it and through redis-py with
hiredis.

The commands are push, read at the cursor, answer, and collect, as `udo_protocol/queue` sends them, from one process to one server, without
Arrow or an operator. The clients take turns in each round. redis-py is measured by its connection, its fastest way, and by its pipelines.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from redis.connection import UnixDomainSocketConnection

from benchmarks.harness.bringup import say, server
from benchmarks.harness.quantiles import medians
from benchmarks.harness.rules import InvalidRun
from benchmarks.harness.tables import Section
from node_manager.servers.binaries import find_server, server_args
from udo_protocol.limits import INLINE_BYTES
from udo_protocol.queue import slot
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.keys import SlotKeys

KEYS = SlotKeys("codec", 0)
TOKEN, LANE, TTL_MS, BOUND = 1, "lane", 600_000, 256 << 20
LOG, OUT, HEADS = KEYS.log, KEYS.out(LANE), ["MGET", KEYS.base, KEYS.emitted, KEYS.owner]
# Frames of one event, of a size just large enough for a separate payload, and of 10,000 rows of 32 bytes.
SIZES = (300, 10_000, 320_000)
ROUNDS, QUICK_ROUNDS = 9, 3
ROUND_S, QUICK_ROUND_S = 0.6, 0.2

Commands = Sequence[Sequence[Any]]
Ask = Callable[[Commands], list[Any]]


@dataclass(frozen=True)
class Cost:
    """µs a frame: of wall-clock time, and of this process's processor time."""

    wall_us: float
    cpu_us: float


@dataclass(frozen=True)
class Figures:
    """By bytes of a frame and client, medians of the rounds."""

    sizes: dict[str, dict[str, Cost]]
    rounds: int
    round_s: float


def own(path: str) -> Ask:
    """Use this project's codec."""
    conn = Connection(path)

    def ask(commands: Commands) -> list[Any]:
        conn.send(commands)
        return [conn.receive() for _ in commands]

    return ask


def by_connection(path: str) -> Ask:
    """Use redis-py's connection, parsed by hiredis."""
    conn = UnixDomainSocketConnection(path=path)
    conn.connect()
    if "iredis" not in type(conn._parser).__name__:
        raise InvalidRun("redis-py does not use hiredis here")

    def ask(commands: Commands) -> list[Any]:
        conn.send_packed_command(conn.pack_commands([[_joined(a) for a in c] for c in commands]))
        return [conn.read_response() for _ in commands]

    return ask


def by_pipeline(path: str) -> Ask:
    """Use redis-py's pipelines, as in its documentation."""
    client = redis.Redis(unix_socket_path=path)

    def ask(commands: Commands) -> list[Any]:
        transaction = commands[0][0] == "MULTI"
        with client.pipeline(transaction=transaction) as pipe:
            for c in commands[1:-1] if transaction else commands:
                pipe.execute_command(*(_joined(a) for a in c))
            return [pipe.execute()]

    return ask


def _joined(argument: Any) -> Any:
    """Join the pieces of an argument, which redis-py does not take."""
    return b"".join(argument) if isinstance(argument, list) else argument


CLIENTS = {"own": own, "redis_connection": by_connection, "redis_pipeline": by_pipeline}


def frame(ask: Ask, n: int, payload: list[bytes]) -> None:
    """Send a frame, number `n` of the lane and of the log, and collect its answer."""
    size = sum(map(len, payload))
    accept = ["FCALL", "udo_accept", 1, KEYS.prefix, LANE, n, n - 1, 0, size, BOUND, TTL_MS, "", ""]
    emit = ["FCALL", "udo_emit", 1, KEYS.prefix, TOKEN, n, n, 1, BOUND, TTL_MS]
    if size < INLINE_BYTES:
        ask([[*accept, payload]])
    else:
        ask([["MULTI"], ["RPUSH", LOG, payload], accept, ["EXEC"]])
    ask([["MULTI"], HEADS, ["LRANGE", LOG, 0, 15], ["EXEC"]])
    if size < INLINE_BYTES:
        ask([[*emit, 1, LANE, 1, payload]])
    else:
        ask([["MULTI"], ["RPUSH", OUT, payload], [*emit, 0, LANE, 1], ["EXEC"]])
    answers = ask([["LRANGE", OUT, 0, 15], ["LTRIM", OUT, 1, -1]])
    got = answers[0][0] if len(answers) == 1 else answers[0]
    if [len(a) for a in got] != [size]:
        raise InvalidRun(f"frame {n}: expected one answer of {size} bytes, got {[len(a) for a in got]}")


def measure(path: str, client: str, size: int, seconds: float) -> Cost:
    """Measure one client's frames of this size for `seconds`."""
    admin = Connection(path)
    admin.call("FLUSHALL")
    admin.call("FCALL", "udo_open", 1, KEYS.prefix, LANE, TTL_MS, b"12345678", b"schema")
    admin.call("SET", KEYS.owner, TOKEN)
    admin.close()
    ask, payload = CLIENTS[client](path), [b"h" * 100, b"x" * (size - 100)]
    n = 0
    started, used = time.perf_counter(), time.process_time()
    while time.perf_counter() - started < seconds:
        n += 1
        frame(ask, n, payload)
    return Cost((time.perf_counter() - started) / n * 1e6, (time.process_time() - used) / n * 1e6)


def run(*, quick: bool, driver: str, seed: int) -> Figures:
    """Run the whole suite; driver and seed change nothing."""
    rounds, seconds = (QUICK_ROUNDS, QUICK_ROUND_S) if quick else (ROUNDS, ROUND_S)
    found: dict[str, dict[str, Cost]] = {}
    binary, _ = find_server(None)
    with tempfile.TemporaryDirectory(prefix="udo-codec-") as directory:
        socket = Path(directory) / "s"
        with server(server_args(binary, "queue", Path(directory), socket), socket) as path:
            conn = Connection(path)
            slot.install(conn)
            conn.close()
            for size in SIZES:
                say(f"frames of {size:,} bytes")
                results: dict[str, list[Cost]] = {name: [] for name in CLIENTS}
                for _ in range(rounds):
                    for name, of_client in results.items():
                        of_client.append(measure(path, name, size, seconds))
                found[str(size)] = {name: medians(of_client, 1) for name, of_client in results.items()}
    return Figures(found, rounds, seconds)


def sections(f: Figures) -> list[Section]:
    """The tables of a run."""
    names = {"own": "own codec", "redis_connection": "redis-py, connection", "redis_pipeline": "redis-py, pipeline"}
    rows = []
    for size, clients in f.sizes.items():
        for client, r in clients.items():
            ratios = [f"{r.wall_us / clients['own'].wall_us:.2f}", f"{r.cpu_us / clients['own'].cpu_us:.2f}"]
            rows.append([names[client], f"{int(size):,}", f"{r.wall_us:.0f}", f"{r.cpu_us:.0f}", *ratios])
    header = ("client", "bytes", "µs a frame", "µs of CPU", "against own", "CPU against own")
    remark = f"Medians of {f.rounds} rounds of {f.round_s:g} s in turn; one frame there and back, both ends in one process."
    return [Section("RESP codec: one frame's life", header, rows, remark)]
