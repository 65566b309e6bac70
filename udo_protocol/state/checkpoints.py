"""A slot's checkpoints on the state server, fenced by the owner's token; cuts of sessions; the order of a session's runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from udo_protocol.errors import Fenced, Stale, TwoProducers
from udo_protocol.limits import RUNS_OF_A_PLAN
from udo_protocol.queue import untrusted
from udo_protocol.queue.connection import Arg, Connection, as_int
from udo_protocol.queue.durable import WAIT_MS, late
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.queue.slot_reader import Emit
from udo_protocol.state import changelog, replication
from udo_protocol.state.changelog import LoggedCheckpoint

# A write is repeated if the changelog has got its first reader in the meantime.
_TRIES = 5


@dataclass(frozen=True, slots=True)
class OwnedState:
    """A slot's state, as the owner with this fencing token writes it."""

    server: Connection
    keys: SlotKeys
    token: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The extent of a checkpoint: frames up to `seq` in the log of the queue server run `run_id`, and answers not yet emitted.

    `riding`: the answers to the last of these frames, as (lane, frame). They were made durable with the state, and the next owner emits
    them if this one dies before it does.
    """

    seq: int = 0
    run_id: str = ""
    riding: Sequence[tuple[str, bytes | bytearray]] = ()


def checkpoint(
    owned: OwnedState,
    covers: Checkpoint,
    emitted: int,
    writes: Sequence[Sequence[Arg]],
    entry: Callable[[], LoggedCheckpoint] | None = None,
    replicated: Callable[[], None] = lambda: None,
) -> Emit:
    """Make `writes` (commands on the slot's keys) and what they cover durable in one transaction; returns when it is on disk.

    `entry` makes the changelog's entry; called only if there are readers. `replicated` is called at the end if the slot has replicas.
    AHEAD, and nothing is written, if frames are covered that are neither emitted nor riding. Raises Fenced if the token is not the
    owner's (checked by WATCH, which is sound because nothing is sent before the outcome is known), and ServerLost if the disk (WAITAOF)
    takes too long.
    """
    if covers.seq > emitted + len(covers.riding):
        return Emit.AHEAD
    keys, riding = owned.keys, list[Arg](part for lane, frame in covers.riding for part in (lane, frame))
    commands: list[Sequence[Arg]] = [
        *writes,
        ("SET", keys.checkpoint, f"{covers.seq} {covers.run_id}"),
        ("DEL", keys.riding),
    ]
    if riding:
        commands.append(("RPUSH", keys.riding, *riding))
    if _write(owned, commands, f"checkpoint {covers.seq}", entry):
        replicated()
    return Emit.STORED


def amend(owned: OwnedState, writes: Sequence[Sequence[Arg]]) -> None:
    """Make `writes` durable in one transaction, as the owner, without covering further frames. Errors as in `checkpoint`."""
    _write(owned, writes, "a change of state")


def _write(owned: OwnedState, commands: Sequence[Sequence[Arg]], what: str, entry: Callable[[], LoggedCheckpoint] | None = None) -> bool:
    """Run the commands in one transaction, fenced, logged and durable; returns whether the slot has replicas."""
    state, keys, token = owned.server, owned.keys, owned.token
    replication.require_writes(keys, commands)
    looks = (keys.owner, keys.reading, keys.replicas)
    for _ in range(_TRIES):
        state.send([("WATCH", *looks), ("MGET", *looks)])
        state.receive()
        owner, reading, replicas = state.reply()
        if as_int(owner) != token:
            state.call("UNWATCH")
            raise Fenced(f"token {token} is not the owner of {keys} any more, {as_int(owner)} is")
        steps = [*commands, changelog.appending(keys, entry())] if entry and reading is not None else list(commands)
        if replicas is not None:
            steps += replication.logging(keys, token, commands)
        state.send([("MULTI",), *steps, ("EXEC",), ("WAITAOF", 1, 0, WAIT_MS)])
        replies = [state.receive(WAIT_MS / 1000 + state.default_timeout_s) for _ in range(len(steps) + 3)]
        for r in (*replies, *(replies[-2] or ())):
            if isinstance(r, Exception):
                raise r
        if replies[-2] is None:
            continue
        if replies[-1][0] < 1:
            raise late(state, f"{what} of {keys}")
        return replicas is not None
    raise Fenced(f"token {token} could not write {what} of {keys}: its owner or the readers of its changelog changed {_TRIES} times")


def load_checkpoint(state: Connection, keys: SlotKeys) -> Checkpoint:
    """The newest checkpoint; Checkpoint() if there is none."""
    reads = (("GET", keys.checkpoint), ("LRANGE", keys.riding, 0, -1))
    covers, riding = untrusted.read(state, *reads, most_bytes=untrusted.STATE_BYTES)
    if covers is None:
        return Checkpoint()
    with untrusted.reading(keys.riding, "lanes and answers"):
        answers = [(bytes(lane).decode(), f) for lane, f in zip(riding[::2], riding[1::2], strict=True)]
    return Checkpoint(*_covers(covers, keys.checkpoint), answers)


def pinned_checkpoint(state: Connection, keys: SlotKeys, savepoint: str) -> Checkpoint:
    """The checkpoint that a savepoint holds, without riding answers; Checkpoint() if there is no such savepoint."""
    key = keys.savepoint_info(savepoint)
    (covers,) = untrusted.read(state, ("HGET", key, "ckpt"))
    return Checkpoint(*_covers(covers, key)) if covers else Checkpoint()


def _covers(text: bytes, key: str) -> tuple[int, str]:
    with untrusted.reading(key, "`seq run_id`"):
        seq, run_id = bytes(text).decode().split(" ")
    return untrusted.number(seq, key), run_id


def run_order(state: Connection, keys: SlotKeys, session: str, run: str, call: str = "", plan: int = 0) -> int:
    """The number of a run among its session's runs, from 1, in the order of their plans; the same on every slot.

    Raises TwoProducers for a second call in one run, and Stale for a run that is first seen after a run of a later plan. If runs were
    ordered by arrival, a late task of a dead driver would make its successor's tasks stale forever (tests/model, runs_in_start_order).
    """
    asked: Sequence[Arg] = ("FCALL", "udo_run", 1, keys.prefix, session, run, call, plan)
    # A new run is logged for the slot's replicas.
    there = state.call("HEXISTS", keys.runs(session), run)
    order, known = state.call(*asked) if there else replication.write(state, keys, [asked])[0]
    if order < 0:
        raise Stale(
            f"session {session} of {keys.deployment}: a run of the query is known whose DataFrame was built later than this one's, so "
            "this one's answers do not count. If it is the newest run, build its DataFrame anew (call udo(...) again) before starting it"
        )
    if bytes(known).decode() != call:
        raise TwoProducers(
            f"session {session} of {keys.deployment} is used by two calls in one query; give each a name: udo(..., uid='first')"
        )
    return int(order)


def has_runs(state: Connection, keys: SlotKeys, session: str) -> bool:
    """Whether the slot knows of a run of the session."""
    return bool(state.call("EXISTS", keys.runs(session)))


def order_after(state: Connection, keys: SlotKeys, session: str, plan: int) -> None:
    """Order all runs that are first seen from now on after those of plans below `plan`, unless runs of the session are known.

    Other slots may know the numbers of runs that this one, having lost its disk, does not know.
    """
    before = f"{plan * RUNS_OF_A_PLAN} 0 "  # like that of a run without a name, of a plan before all others
    replication.write(state, keys, [("HSETNX", keys.runs(session), "", before)])


def runs(state: Connection, keys: SlotKeys) -> dict[str, dict[str, str]]:
    """Each session's runs as stored: run -> `order plan call`."""
    found = {}
    for session in map(bytes, state.call("HKEYS", keys.sessions)):
        flat = state.call("HGETALL", keys.runs(session.decode()))
        found[session.decode()] = {bytes(run).decode(): bytes(known).decode() for run, known in zip(flat[::2], flat[1::2], strict=True)}
    return found


def know_runs(state: Connection, keys: SlotKeys, sessions: Mapping[str, Mapping[str, str]]) -> None:
    """Add these runs of another slot to the slot's own ones."""
    for session, known in sessions.items():
        for run, text in known.items():
            state.call("HSETNX", keys.runs(session), run, text)


def newest_run(state: Connection, keys: SlotKeys, session: str) -> int:
    """The highest number of the session's known runs; 0 if there are none."""
    return max((int(bytes(known).split(b" ", 1)[0]) for known in state.call("HVALS", keys.runs(session))), default=0)


def cut(state: Connection, keys: SlotKeys) -> dict[str, tuple[int, str]]:
    """Sessions that were dropped or replaced from outside: session -> (seq, run_id). Frames up to `seq` belong to the former state."""
    flat = state.call("HGETALL", keys.cut)
    found = {}
    for name, value in zip(flat[::2], flat[1::2], strict=True):
        seq, _, run_id = bytes(value).decode().partition(" ")
        found[bytes(name).decode()] = (int(seq), run_id)
    return found
