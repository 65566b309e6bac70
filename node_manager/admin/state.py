"""Keyed state of this node: listed, exported, replaced and dropped. Knows where a session is stored, never what its values mean.

A change is made while no instance owns the slot (Slot.change_state), since an owner has its sessions in memory; the next owner loads the
changed state.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, replace
from threading import Event, Lock

from node_manager import homes
from node_manager.deployments.deployments import NodeDeployment
from node_manager.homes import SessionRequest
from node_manager.manager import Manager
from node_manager.slots.slot import Slot
from udo_protocol.errors import Conflict, NotFound, SchemaError, SlotBroken, Unavailable, UsageError, WaitTimeout
from udo_protocol.formats.manifest import Manifest
from udo_protocol.limits import KEY_GROUPS
from udo_protocol.queue import slot as log
from udo_protocol.queue import untrusted
from udo_protocol.queue.connection import Arg, Connection
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.state import checkpoints, pieces, replication, rewinding, savepoints, session_record
from udo_protocol.state.pieces import PiecePlace, StoredGroup
from udo_protocol.state.session_record import SessionRecord

# Run numbers of a dropped session are kept this long, so that a late task of an old run is not taken for a new one.
_FORGET_RUNS_MS = 3_600_000
# Time for a change, on top of the time in which a fresh instance loads the operator (limits.open_timeout_s).
_CHANGE_MARGIN_S = 30.0
Writes = list[list[Arg]]


@dataclass(frozen=True)
class Info:
    """A session, for lists. `broken`: why its slot cannot be read."""

    deployment: str
    slot: int
    session: str
    record: SessionRecord
    lanes: int
    used_at: float
    in_use: bool
    broken: str = ""


def keyed(deployment: NodeDeployment) -> tuple[Slot, Manifest]:
    """Return its slot and manifest; UsageError for an operator that keeps no state, NotFound until it has been loaded."""
    slot = deployment.slot
    if slot.wanted is None:
        raise NotFound(f"deployment {deployment.name!r} is still starting; see: udo status")
    manifest = slot.wanted.image.manifest
    if not manifest.key:
        raise UsageError(f"deployment {deployment.name!r} ({manifest.reference}) keeps no state: its operator declares no key")
    return slot, manifest


class States:
    """The operations of `udo state` on this node. Methods may be called from any thread."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._marking = Lock()  # held while the mark of an import is decided on and written

    def sessions(self, name: str = "") -> list[Info]:
        """List the sessions of one deployment, or of all; those of a slot by name."""
        deployments = [self._manager.deployments.find(name)] if name else self._manager.deployments.all()
        found: dict[tuple[str, str], list[Info]] = {}
        with self._connected() as (state, queue):
            for d in deployments:
                for slot in d.own:
                    for session, record, broken in self._listed(state, slot, bool(name)):
                        info = replace(self._info(queue, slot, session, record), broken=broken)
                        found.setdefault((d.name, session), []).append(info)
        return [_together(infos) for infos in found.values()]

    def _listed(self, state: Connection, slot: Slot, alone: bool) -> list[tuple[str, SessionRecord, str]]:
        """(name, record, "") of a slot's sessions, by name. In a list of all deployments an unreadable slot is one entry that says why, and
        does not hide the others."""
        try:
            return [(name, record, "") for name, record in sorted(session_record.read(state, slot.keys).items())]
        except SlotBroken as e:
            if alone:
                raise
            return [("", SessionRecord(), str(e))]

    @contextlib.contextmanager
    def pinned(self, name: str, session: str) -> Iterator[tuple[Info, Manifest, list[str], Iterator[tuple[int, StoredGroup]]]]:
        """Yield the session as the newest checkpoints of this node's slots leave it at one moment, however long reading takes: info,
        manifest, what the checkpoints cover, and groups.

        The partitions' highest event times (groups below 0) are in every slot; the first one's are given. NotFound lists similar names.
        """
        deployment = self._manager.deployments.find(name)
        first, manifest = keyed(deployment)
        pin = f"export-{secrets.token_hex(4)}"
        with self._connected() as (state, queue), contextlib.ExitStack() as pins:
            homes.require_whole(state, first.keys, SessionRequest(name, session))
            with self._manager.moves.none_during(name):
                pins.enter_context(savepoints.made(state, [slot.keys for slot in deployment.own], pin))
            info = self._whole(state, queue, deployment, session, pin)
            covers = [checkpoints.pinned_checkpoint(state, slot.keys, pin) for slot in deployment.own]
            leases = [savepoints.holding(state, slot.keys, pin) for slot in deployment.own]

            def hold() -> None:
                for lease in leases:
                    lease()

            def groups() -> Iterator[tuple[int, StoredGroup]]:
                for slot in deployment.own:
                    read = pieces.read(state, slot.keys, session, pin, between=hold)
                    yield from ((n, group) for n, group in read if n >= 0 or slot is first)

            yield info, manifest, [f"{c.seq} {c.run_id}" for c in covers], groups()

    def drop(self, name: str, session: str, *, force: bool) -> SessionRecord:
        """Remove a session for good; return its record. Conflict while it is in use, unless forced: then its query fails.

        The first slot, which has its home, is last: a drop that is interrupted can be repeated.
        """
        deployment = self._manager.deployments.find(name)
        keyed(deployment)
        first, *others = deployment.own

        def removal(slot: Slot, state: Connection, queue: Connection) -> Writes:
            if not force:
                self._require_unused(queue, slot, session, "to drop it anyway, use --force (the query then fails with StateLost)")
            return _removal(state, slot.keys, session)

        def drop(state: Connection, queue: Connection) -> Writes:
            self._record(state, first, session)
            forgotten: Writes = [homes.forgetting(first.keys, session)]
            forgotten.append(["PEXPIRE", first.keys.runs(session), _FORGET_RUNS_MS])
            return [*removal(first, state, queue), *forgotten]

        def release() -> None:
            if self._registered(name):
                self._manager.homes.release(name, session, first.keys)

        with self._manager.moves.none_during(name):
            with self._connected() as parts:
                found = self._whole(*parts, deployment, session)
            for slot in others:
                self._change(slot, session, functools.partial(removal, slot), _nothing)
            self._change(first, session, drop, release)
        return found.record

    def put(self, name: str, session: str, record: SessionRecord, groups: Mapping[int, StoredGroup], *, replace: bool) -> None:
        """Write a session, each key group in the slot that has it. Conflict while a session of that name is in use, or if there is one and
        `replace` is not set.

        With one slot that is one step. With several it is `begin_import`, `put_part` and `end_import`: until all have been done, and if the
        import is interrupted, nobody is served.
        """
        deployment = self._manager.deployments.find(name)
        first, _ = keyed(deployment)
        if deployment.slots_in_all > 1:
            number = homes.import_number()
            run = self.begin_import(name, session, number, record.bytes, replace=replace)
            self.put_part(name, session, number, record.in_run(run), groups)
            self.end_import(name, session, number)
            return
        self._require_room(deployment, record.bytes)
        done: Writes = []

        def claim() -> None:
            done.append(self._served(first.keys, SessionRequest(name, session)))

        def put(state: Connection, queue: Connection) -> Writes:
            again = homes.is_importing(state, first.keys, session)  # by an import that was interrupted when there were several slots
            self._require_free(state, queue, first, session, replace=replace or again)
            known = record.in_run(checkpoints.newest_run(state, first.keys, session))
            return [*_replacing(state, first.keys, session, known, groups), *done]

        with self._manager.moves.none_during(name):
            self._change(first, session, put, claim)

    def begin_import(self, name: str, session: str, number: int, size: int, *, replace: bool) -> int:
        """Stop serving the session in the slots of this node until `end_import`; return its newest run that is known here.

        `number`: the import's. `size`: bytes of the whole state. Errors as in `put`. The session's former state stays until `put_part`.
        """
        deployment = self._manager.deployments.find(name)
        first, _ = keyed(deployment)
        self._require_room(deployment, size)
        with self._marking, self._connected() as (state, queue):
            again = homes.is_importing(state, first.keys, session)
            for slot in deployment.own:
                self._require_free(state, queue, slot, session, replace=replace or again)
            mark = self._manager.homes.importing(first.keys, SessionRequest(name, session), number, registered=self._registered(name))
            writes: Writes = [mark]
            if session not in session_record.read(state, first.keys):  # it is listed, and can be dropped, if the import is interrupted now
                writes.append(_noting(first.keys, session, SessionRecord(key_groups=deployment.config.instance.key_groups)))
            replication.write(state, first.keys, writes)
            return max(checkpoints.newest_run(state, slot.keys, session) for slot in deployment.own)

    def put_part(self, name: str, session: str, number: int, record: SessionRecord, groups: Mapping[int, StoredGroup]) -> None:
        """Write the session's groups, each to the slot of this node that has it, and those below 0 to every slot. Conflict if some are on
        another node, or import `number` is over.

        `record`: its `keys` and `bytes` are noted with the first slot only, so that they are counted once.
        """
        deployment, placed = self._manager.deployments.find(name), self._manager.across.find(name)
        asked, keys = SessionRequest(name, session), deployment.slot.keys

        def put(slot: Slot, known: SessionRecord, mine: Mapping[int, StoredGroup], state: Connection, _: Connection) -> Writes:
            homes.require_import(state, keys, asked, number)
            return _replacing(state, slot.keys, session, known, mine)

        with self._manager.moves.none_during(name):
            own = [slot.number for slot in deployment.own]
            groups_in_all = record.key_groups or KEY_GROUPS
            known = placed.on(self._manager.settings.node, own, groups_in_all) if placed else self._manager.moves.map(deployment)
            having = {n: known.groups[n] for n in groups if n >= 0}
            if elsewhere := sorted(n for n, there in having.items() if there < 0):
                raise Conflict(f"key groups {elsewhere} of {name!r} are on another node by now: import the session again")
            for slot in deployment.own:
                mine = {n: group for n, group in groups.items() if having.get(n, slot.number) == slot.number}
                noted = record if slot is deployment.slot else replace(record, keys=0, bytes=0)
                self._change(slot, session, functools.partial(put, slot, noted, mine), _nothing)

    def end_import(self, name: str, session: str, number: int) -> None:
        """Serve the session from now on. Conflict if import `number` is over."""
        deployment, asked = self._manager.deployments.find(name), SessionRequest(name, session)
        keys = deployment.slot.keys
        done = self._served(keys, asked)
        with self._marking, self._connected() as (state, _):
            homes.require_import(state, keys, asked, number)
            replication.write(state, keys, [done])

    # -- the parts ---------------------------------------------------------------------------------------------------

    def _served(self, keys: SlotKeys, asked: SessionRequest) -> list[Arg]:
        """The command after which a session that has been imported is served here."""
        registered = self._registered(asked.deployment)
        return self._manager.homes.taken(keys, asked) if registered else homes.forgetting(keys, asked.session)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[tuple[Connection, Connection]]:
        with (
            contextlib.closing(self._manager.servers.connect("state")) as state,
            contextlib.closing(self._manager.servers.connect("queue")) as queue,
        ):
            yield state, queue

    def _whole(self, state: Connection, queue: Connection, deployment: NodeDeployment, session: str, savepoint: str = "") -> Info:
        """A session over all slots; NotFound lists similar names."""
        self._record(state, deployment.slot, session, savepoint)
        there = [(slot, session_record.read(state, slot.keys, savepoint)) for slot in deployment.own]
        return _together([self._info(queue, slot, session, known[session]) for slot, known in there if session in known])

    def _record(self, state: Connection, slot: Slot, session: str, savepoint: str = "") -> SessionRecord:
        known = session_record.read(state, slot.keys, savepoint)
        if session not in known:
            near = difflib.get_close_matches(session, known) or [s for s in known if s.startswith(session)] or sorted(known)[:5]
            there = f"; there are: {', '.join(near)}" if near else "; it has none"
            raise NotFound(f"deployment {slot.deployment!r} has no session {session!r}{there}. List them with: udo state ls")
        return known[session]

    def _info(self, queue: Connection, slot: Slot, session: str, record: SessionRecord) -> Info:
        lanes, used_ms = log.users(queue, slot.keys, session)
        in_use = bool(lanes) or time.time() - used_ms / 1000 < self._manager.settings.session_idle_s
        return Info(slot.deployment, slot.number, session, record, len(lanes), used_ms / 1000, in_use)

    def _require_unused(self, queue: Connection, slot: Slot, session: str, otherwise: str) -> None:
        info = self._info(queue, slot, session, SessionRecord())
        if info.in_use:
            idle_s = self._manager.settings.session_idle_s
            ago_s = time.time() - info.used_at
            now = f"{info.lanes} of its tasks exchange events now" if info.lanes else f"a task used it {ago_s:.0f} s ago"
            raise Conflict(
                f"session {session} of {slot.deployment!r} is in use: {now}. Stop the query and wait {idle_s:g} s, or {otherwise}"
            )

    def _require_free(self, state: Connection, queue: Connection, slot: Slot, session: str, *, replace: bool) -> None:
        """Conflict if the session is in use, or there is one and it is not to be replaced."""
        self._require_unused(queue, slot, session, "stop it first")
        if not replace and session in session_record.read(state, slot.keys):
            name = slot.deployment
            raise Conflict(f"deployment {name!r} has a session {session} already; replace it with --replace, or choose another name")

    def _require_room(self, deployment: NodeDeployment, size: int) -> None:
        """Conflict if an operator may not keep a state of that many bytes."""
        manifest = keyed(deployment)[1]
        if (bound := manifest.limits.state_mb << 20) < size:
            raise Conflict(f"the state takes {size} bytes; {manifest.reference} may keep {bound} (limits.state_mb)")

    def _registered(self, name: str) -> bool:
        """Whether other nodes may have the deployment, too."""
        return self._manager.deployments.find(name).source == "registry"

    def _change(self, slot: Slot, session: str, plan: Callable[[Connection, Connection], Writes], agree: Callable[[], None]) -> None:
        """Make the changes that `plan` returns, as the slot's only owner; `plan` may refuse. `agree` asks the registry first."""
        with self._connected() as (state, queue):
            plan(state, queue)  # if it refuses here, nothing is interrupted
        agree()

        timeout_s = _CHANGE_MARGIN_S + (slot.wanted.image.manifest.limits.open_timeout_s if slot.wanted else 0.0)
        deadline, changing, late = time.monotonic() + timeout_s, Lock(), Event()
        waited = f"waited {timeout_s:g} s for a change of the state of {slot.deployment}; see: udo status"

        def between() -> None:
            if time.monotonic() > deadline:
                raise Unavailable(f"the replicas of {slot.deployment!r} have not taken over yet what was changed: repeat this")

        def work(state: Connection, queue: Connection, token: int) -> None:
            with changing:
                if late.is_set():  # the caller has gone, and key groups may move again
                    raise WaitTimeout(waited)
                change(state, queue, token)

        def change(state: Connection, queue: Connection, token: int) -> None:
            writes = plan(state, queue)
            rewinding.forget(state, queue, slot.keys)  # a rollback would undo the change
            for lane in log.users(queue, slot.keys, session)[0]:
                queue.call("FCALL", "udo_close", 1, slot.keys.prefix, lane)  # its attempt fails and is retried on the changed state
            stats = log.slot_stats(queue, slot.keys)
            tail = stats.emitted + stats.depth_frames
            old = [name for name, (_, run) in checkpoints.cut(state, slot.keys).items() if run != queue.run_id]
            forget: Writes = [["HDEL", slot.keys.cut, *old]] if old else []
            owned = checkpoints.OwnedState(state, slot.keys, token)
            checkpoints.amend(owned, [*writes, *forget, ["HSET", slot.keys.cut, session, f"{tail} {queue.run_id}"]])

        try:
            slot.change_state(work).result(timeout_s)
            with self._connected() as (state, _):
                replication.await_held(state, slot.keys, between)
        except FutureTimeout:
            with changing:  # if it has just begun, it ends first
                late.set()
            raise WaitTimeout(waited) from None
        finally:
            self._manager.mirrors.end(slot.deployment)  # mirrors know the former state; a canary begins anew


def _nothing() -> None:
    """Nothing to agree on."""


def _together(infos: Sequence[Info]) -> Info:
    """Merge the parts of a session that the slots have, the first slot's first."""
    if len(infos) == 1:
        return infos[0]
    records = [i.record for i in infos]
    ended = max((r.last_ended for r in records if r.last_ended is not None), default=None)
    keys, size, at = sum(r.keys for r in records), sum(r.bytes for r in records), max(r.at for r in records)
    record, broken = replace(records[0], last_ended=ended, keys=keys, bytes=size, at=at), next((i.broken for i in infos if i.broken), "")
    in_use = any(i.in_use for i in infos)
    return replace(infos[0], record=record, used_at=max(i.used_at for i in infos), in_use=in_use, broken=broken)


def require_fit(manifest: Manifest, key: Iterable[tuple[str, str]], state_version: int, key_groups: int, wanted_groups: int) -> None:
    """SchemaError unless the deployment reads state with these key columns, in that version and number of key groups."""
    wanted = [(name, manifest.input[name]) for name in manifest.key]
    came = list(key)
    if came != wanted:
        show = [", ".join(f"{n} {t}" for n, t in columns) or "nothing" for columns in (wanted, came)]
        raise SchemaError(f"{manifest.reference} keeps state by {show[0]}; the file's state is kept by {show[1]}")
    if state_version != manifest.state_version:
        raise SchemaError(f"{manifest.reference} reads state of version {manifest.state_version}; the file's is of version {state_version}")
    if key_groups != wanted_groups:
        raise SchemaError(
            f"the file's state is in {key_groups} key groups; the deployment has {wanted_groups}: undeploy it and deploy it with "
            f"--key-groups {key_groups}"
        )


def _replacing(state: Connection, keys: SlotKeys, session: str, record: SessionRecord, groups: Mapping[int, StoredGroup]) -> Writes:
    """The commands that replace a slot's part of the session."""
    writes = [*_removal(state, keys, session), _noting(keys, session, record)]
    names = f"import-{secrets.token_hex(4)}"  # for the names of pieces that no owner wrote
    for number, group in groups.items():
        place = PiecePlace(f"{names}.{number}", len(group.deltas), len(group.base or b""), sum(map(len, group.deltas)))
        writes += pieces.writing(keys, session, number, group.meta, place, group.base, group.deltas)
    return writes


def _noting(keys: SlotKeys, session: str, record: SessionRecord) -> list[Arg]:
    return ["HSET", keys.sessions, session, session_record.text(record, time.time())]


def _removal(state: Connection, keys: SlotKeys, session: str) -> Writes:
    (fields,) = untrusted.read(state, ("HKEYS", keys.manifest(session)))
    with untrusted.reading(keys.manifest(session), "fields named by key groups"):
        numbers = [int(n) for n in fields]
    return [*pieces.removing(keys, session, numbers), ["HDEL", keys.sessions, session]]
