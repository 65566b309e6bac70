"""What a slot keeps on the state server: checkpoints of durable state, fenced, and the order of a session's runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from udo_protocol.errors import Fenced, ServerLost, Stale, TwoProducers
from udo_protocol.queue.connection import Arg, Connection
from udo_protocol.queue.slot import as_int
from udo_protocol.queue.slot_reader import Emit
from udo_protocol.state import changelog, untrusted

# A write is tried again when the changelog got its first reader meanwhile.
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What durable state covers: frames up to `seq` of the queue server run `run_id`, and answers not yet emitted.

    `riding` are the answers, as (lane, frame), to the last frames of the range: they were made durable with the state and
    are emitted from here if their instance died before it could.
    """

    seq: int = 0
    run_id: str = ""
    riding: Sequence[tuple[str, bytes | bytearray]] = ()


def checkpoint(
    state: Connection,
    prefix: str,
    token: int,
    covers: Checkpoint,
    emitted: int,
    writes: Sequence[Sequence[Arg]],
    entry: Callable[[], bytes] | None = None,
    wait_ms: int = 10_000,
) -> Emit:
    """Make `writes` (commands on the slot's keys) and what they cover durable in one step; AHEAD beyond emitted + riding.

    `entry` makes what the changelog says of it, if anybody reads that. Fenced by WATCH: sound here, since nothing is
    sent behind the transaction before its outcome is known, and payload may be large. Returns when it is on disk (WAITAOF on
    the same connection); ServerLost if that takes longer than `wait_ms`.
    """
    if covers.seq > emitted + len(covers.riding):
        return Emit.AHEAD
    riding: list[Arg] = [part for lane, frame in covers.riding for part in (lane, frame)]
    commands: list[Sequence[Arg]] = [
        *writes,
        ("SET", f"{prefix}ckpt", f"{covers.seq} {covers.run_id}"),
        ("DEL", f"{prefix}riding"),
    ]
    if riding:
        commands.append(("RPUSH", f"{prefix}riding", *riding))
    _write_as_owner(state, prefix, token, commands, f"checkpoint {covers.seq}", wait_ms, entry)
    return Emit.STORED


def amend(state: Connection, prefix: str, token: int, writes: Sequence[Sequence[Arg]], wait_ms: int = 10_000) -> None:
    """Make `writes` durable in one step, as the owner, without covering anything: state is replaced from outside."""
    _write_as_owner(state, prefix, token, writes, "a change of state", wait_ms)


def _write_as_owner(
    state: Connection,
    prefix: str,
    token: int,
    commands: Sequence[Sequence[Arg]],
    what: str,
    wait_ms: int,
    entry: Callable[[], bytes] | None = None,
) -> None:
    for _ in range(_TRIES):
        state.send([("WATCH", f"{prefix}owner", f"{prefix}reading"), ("MGET", f"{prefix}owner", f"{prefix}reading")])
        state.receive()
        owner, reading = state.reply()
        if as_int(owner) != token:
            state.call("UNWATCH")
            raise Fenced(f"token {token} is not the owner of {prefix} any more, {as_int(owner)} is")
        steps = [*commands, changelog.appending(prefix, entry())] if entry and reading is not None else commands
        state.send([("MULTI",), *steps, ("EXEC",), ("WAITAOF", 1, 0, wait_ms)])
        replies = [state.receive(wait_ms / 1000 + state.default_timeout_s) for _ in range(len(steps) + 3)]
        for r in (*replies, *(replies[-2] or ())):
            if isinstance(r, Exception):
                raise r
        if replies[-2] is None:
            continue
        if replies[-1][0] < 1:
            raise ServerLost(f"the state server on {state.path} did not make {what} of {prefix} durable within {wait_ms} ms")
        return
    raise Fenced(f"token {token} could not write {what} of {prefix}: its owner or who reads its changelog changed {_TRIES} times")


def load_checkpoint(state: Connection, prefix: str) -> Checkpoint:
    """What durable state covers; Checkpoint() if there is none."""
    reads = (("GET", f"{prefix}ckpt"), ("LRANGE", f"{prefix}riding", 0, -1))
    covers, riding = untrusted.read(state, *reads, most_bytes=untrusted.STATE_BYTES)
    if covers is None:
        return Checkpoint()
    with untrusted.reading(f"{prefix}riding", "lanes and answers"):
        answers = [(bytes(lane).decode(), f) for lane, f in zip(riding[::2], riding[1::2], strict=True)]
    return Checkpoint(*_covers(covers, f"{prefix}ckpt"), answers)


def pinned_checkpoint(state: Connection, prefix: str, savepoint: str) -> Checkpoint:
    """What a savepoint covers."""
    key = f"{prefix}savepoint:{savepoint}"
    (covers,) = untrusted.read(state, ("HGET", key, "ckpt"))
    return Checkpoint(*_covers(covers, key)) if covers else Checkpoint()


def _covers(text: bytes, key: str) -> tuple[int, str]:
    with untrusted.reading(key, "`seq run_id`"):
        seq, run_id = bytes(text).decode().split(" ")
    return untrusted.number(seq, key), run_id


def run_order(state: Connection, prefix: str, session: str, run: str, call: str = "", planned_ms: int = 0) -> int:
    """The place of a run among those of its session, above 0, the same on every slot: by when it was planned.

    TwoProducers for a second call in one run. Stale for a run that was planned before the newest one and is only seen now: ordered
    by sight, a late task of a driver that is gone would make the driver's successor stale for ever (tests/model, runs_in_start_order).
    """
    order, known = state.call("FCALL", "udo_run", 1, prefix, session, run, call, planned_ms)
    if order < 0:
        raise Stale(
            f"session {session} of {prefix.split(':')[1]}: a run of the query that was planned later is known, this one's answers do not "
            "count. If it is the newest, build its DataFrame anew (call udo(...) again) before starting it"
        )
    if bytes(known).decode() != call:
        raise TwoProducers(
            f"session {session} of {prefix.split(':')[1]} is used by two calls in one query; give each a name: udo(..., uid='first')"
        )
    return int(order)


def newest_run(state: Connection, prefix: str, session: str) -> int:
    """The last of the session's known runs in their order; 0: none is known."""
    return max((int(bytes(known).split(b" ", 1)[0]) for known in state.call("HVALS", f"{prefix}runs:{session}")), default=0)


def cut(state: Connection, prefix: str) -> dict[str, tuple[int, str]]:
    """Sessions that were dropped or replaced: frames up to (seq, of that run of the queue server) belong to what was there before."""
    flat = state.call("HGETALL", f"{prefix}cut")
    found = {}
    for name, value in zip(flat[::2], flat[1::2], strict=True):
        seq, _, run_id = bytes(value).decode().partition(" ")
        found[bytes(name).decode()] = (int(seq), run_id)
    return found
