"""The steps of instances: load, read, process, emit, checkpoint, trim, leave; and the manager's, which starts and promotes them."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.groups import apply, fail, stored_form
from tests.model.lanes import Step
from tests.model.scope import Scope
from tests.model.state import END, ERROR, Answer, Checkpoint, Instance, Memory, World, at, put, spend


def instance_steps(w: World, s: Scope) -> Iterator[Step]:
    """The steps of each instance. An instance bound to a lost queue server can still write a checkpoint."""
    for i, me in enumerate(w.instances):
        if me.queue_life == w.queue.life:
            yield from _read(w, s, i)
            if is_owner(w, s, me):
                yield from _emit(w, s, i)
                yield from _trim(w, s, i)
        if me.owns:
            yield from _checkpoint(w, s, i)
        if me.stored and not _connected(w, s, me) and not _safe(w, me, me.stored, True):
            yield Step(f"I{me.token} waits for its checkpoint, finds the state server restarted and leaves", _gone(w, i))
        if w.budget.crash:
            yield Step(f"I{me.token} crashes", _gone(w, i)._replace(budget=spend(w.budget, "crash")), True)


def is_owner(w: World, s: Scope, me: Instance) -> bool:
    """Whether the queue server has it as owner; without the fence its own belief counts."""
    return me.owns and (me.token == w.queue.owner or not s.rules.fence)


def _gone(w: World, i: int) -> World:
    return w._replace(instances=at(w.instances, i))


def _became(w: World, i: int, me: Instance) -> World:
    return w._replace(instances=at(w.instances, i, me))


def load(w: World, s: Scope, me: Instance) -> tuple[World, Instance]:
    """Load the stored checkpoint; if it counts the frames of another queue server, it has the state, but covers no frame here."""
    stored = w.state.checkpoint
    if stored.life == w.queue.life or not s.rules.incarnation:
        pending = (stored.riding,) if stored.riding else ()
        me = me._replace(cursor=stored.seq + 1, loaded=stored.seq, pending=pending)
    else:
        me = me._replace(cursor=1, loaded=0, pending=())
    return flushed(w, s), me._replace(memory=stored.memory, changed=(), stored=0)


def flushed(w: World, s: Scope) -> World:
    """The world when the state server replies to a client: all its changes are then on disk."""
    return w._replace(disk=w.state) if s.rules.flush_before_reply else w


def _read(w: World, s: Scope, i: int) -> Iterator[Step]:
    me, q = w.instances[i], w.queue
    if me.cursor < q.base:
        if not s.rules.reload:
            yield Step(f"I{me.token} goes on at the base {q.base}", _became(w, i, me._replace(cursor=q.base)))
        elif _connected(w, s, me):
            world, fresh = load(w, s, me)
            yield Step(f"I{me.token} is behind the base {q.base}: reloads checkpoint {w.state.checkpoint.seq}", _became(world, i, fresh))
        else:
            yield Step(f"I{me.token} finds the state server restarted and leaves", _gone(w, i))
        return
    if me.cursor >= q.base + len(q.log) or not (is_owner(w, s, me) or me.cursor <= q.emitted or not s.rules.standby_limit):
        return
    if len(me.pending) >= s.case.window or any(a.value == END for a in me.pending):
        return
    yield _processed(w, s, i, apply(me.memory, q.log[me.cursor - q.base], s.rules), False)
    if w.budget.error:
        thrown = fail(me.memory, q.log[me.cursor - q.base], s.rules)
        if thrown[2] == ERROR:
            yield _processed(w._replace(budget=spend(w.budget, "error")), s, i, thrown, True)


def _processed(w: World, s: Scope, i: int, outcome: tuple[Memory, tuple[int, ...], int | str], fault: bool) -> Step:
    me, q = w.instances[i], w.queue
    (memory, touched, value), frame, pending = outcome, q.log[me.cursor - q.base], me.pending
    if me.owns and me.cursor > q.emitted:
        pending = (*pending, Answer(me.cursor, frame.lane, frame.n, value))
    changed = tuple(sorted({*me.changed, *touched}))
    processed = me._replace(cursor=me.cursor + 1, memory=memory, changed=changed, pending=pending)
    return Step(f"I{me.token} processes number {me.cursor}: {value}", _became(w, i, processed), fault)


def _emit(w: World, s: Scope, i: int) -> Iterator[Step]:
    me, q = w.instances[i], w.queue
    if not me.pending:
        return
    answer = me.pending[0]
    if answer.value == END and not (answer.seq <= me.loaded or _safe(w, me, answer.seq, s.rules.durable_end)):
        return
    out = put(q.out, answer.lane, (*dict(q.out).get(answer.lane, ()), answer))
    world = w._replace(queue=q._replace(emitted=answer.seq, out=out))
    problem = None if answer.seq <= q.emitted + 1 else f"answers after {q.emitted} and before {answer.seq} are missing"
    text = f"I{me.token} emits the answer to number {answer.seq}: {answer.value}"
    yield Step(text, _became(world, i, me._replace(pending=me.pending[1:])), problem=problem)


def _safe(w: World, me: Instance, seq: int, on_disk: bool) -> bool:
    """Whether a checkpoint of its own covers `seq`, and is on disk, if `on_disk`."""
    disk = w.disk.checkpoint
    return me.stored >= seq and (not on_disk or (disk.life == me.queue_life and disk.seq >= seq))


def _trim(w: World, s: Scope, i: int) -> Iterator[Step]:
    me, q = w.instances[i], w.queue
    seq = me.stored if _safe(w, me, me.stored, s.rules.durable_trim) else 0
    seq = max(seq, me.loaded)
    if q.base <= seq <= q.emitted:
        trimmed = q._replace(base=seq + 1, log=q.log[seq + 1 - q.base :])
        yield Step(f"I{me.token} trims the log up to {seq}", w._replace(queue=trimmed))


def _connected(w: World, s: Scope, me: Instance) -> bool:
    return me.state_life == w.state.life or not s.rules.state_run_id


def _checkpoint(w: World, s: Scope, i: int) -> Iterator[Step]:
    me = w.instances[i]
    seq, at_end = me.cursor - 1, bool(me.pending) and me.pending[-1].value == END
    if at_end:
        due, fault = len(me.pending) == 1 and max(me.stored, me.loaded) < seq, None
    else:
        due, fault = seq > max(me.stored, me.loaded) and bool(w.budget.partial), "partial"
        due = due and not (s.rules.checkpoint_bound and me.pending)
    if not due:
        return
    if not _connected(w, s, me):
        yield Step(f"I{me.token} finds the state server restarted and leaves", _gone(w, i))
        return
    if s.rules.fence and w.state.owner != me.token:
        yield Step(f"I{me.token} is not the owner on the state server and leaves", _gone(w, i))
        return
    stored = w.state.checkpoint
    if s.rules.old_checkpoint and stored.life == me.queue_life and stored.seq > seq:
        return
    groups = stored.memory.groups
    for g in me.changed:
        groups = at(groups, g, stored_form(me.memory.groups[g], s.rules))
    memory = Memory(groups, me.memory.run, me.memory.failed if s.rules.failed_in_checkpoint else ())
    riding = me.pending[0] if at_end and s.rules.riding_answer else None
    world = w._replace(budget=spend(w.budget, fault)) if fault else w
    if not s.rules.whole_step and w.budget.crash:
        torn = world._replace(state=w.state._replace(checkpoint=stored._replace(memory=memory)), budget=spend(world.budget, "crash"))
        yield Step(f"I{me.token} stores values up to {seq} and crashes before it stores that number", _gone(torn, i), True)
    world = world._replace(state=w.state._replace(checkpoint=Checkpoint(me.queue_life, seq, memory, riding)))
    text = f"I{me.token} writes checkpoint {seq}" + (f" with the answer {riding.value} riding" if riding else "")
    yield Step(text, _became(world, i, me._replace(stored=seq, changed=())), fault is not None)


def manager_steps(w: World, s: Scope) -> Iterator[Step]:
    """The node manager starts instances and promotes them, first on the state server."""
    here = [x for x in w.instances if x.queue_life == w.queue.life]
    alive = any(is_owner(w, s, x) for x in here)
    coming = any(not x.owns for x in here)
    if not alive and not coming:
        yield _started(w, s, None)
    elif w.budget.standby and len(here) < s.case.instances:
        yield _started(w, s, "standby")
    for i, me in enumerate(w.instances):
        if me.queue_life != w.queue.life or me.owns:
            continue
        if me.token > max(w.state.owner, w.queue.owner) and (not alive or w.budget.promote):
            promoted = w._replace(state=w.state._replace(owner=me.token), budget=spend(w.budget, "promote") if alive else w.budget)
            yield Step(f"I{me.token} is promoted on the state server", flushed(promoted, s), alive)
        elif me.token == w.state.owner >= w.queue.owner:
            promoted = w._replace(queue=w.queue._replace(owner=me.token))
            yield Step(f"I{me.token} is promoted on the queue server", _became(promoted, i, me._replace(owns=True)))


def _started(w: World, s: Scope, fault: str | None) -> Step:
    token = w.state.tokens + 1
    w = w._replace(state=w.state._replace(tokens=token), budget=spend(w.budget, fault) if fault else w.budget)
    world, me = load(w, s, Instance(token, w.queue.life, w.state.life, 1, w.state.checkpoint.memory))
    text = f"I{token} starts as a standby from checkpoint {w.state.checkpoint.seq}, at number {me.cursor}"
    return Step(text, world._replace(instances=(*world.instances, me)), fault is not None)
