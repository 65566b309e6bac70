"""All possible steps in a world, including faults of the servers, and the first world."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.instances import instance_steps, manager_steps
from tests.model.lanes import Step, accepted_key, begin, give_up, lane_of, push_steps, spark_steps, wanted
from tests.model.scope import Scope
from tests.model.state import Checkpoint, Group, Instance, Memory, QueueServer, Spark, StateServer, World, spend


def first(s: Scope) -> World:
    """The first world: empty servers, one instance that owns the slot, Spark at its first epoch."""
    memory = Memory((Group(),) * s.case.groups)
    state = StateServer(0, 1, 1, Checkpoint(0, 0, memory))
    owner = Instance(1, 0, 0, 1, memory, owns=True)
    spark = Spark(0, 0, (), (0,) * s.case.groups)
    runs = () if not s.rules.runs_in_start_order else (0,)
    return begin(World(QueueServer(0, 1), state, state, (owner,), (), spark, runs, s.case.faults), s)


def done(w: World, s: Scope) -> bool:
    """Whether the last epoch is committed."""
    return w.spark.epoch == s.case.epochs


def steps(w: World, s: Scope) -> Iterator[Step]:
    """Every possible step, with the world after it. After the last commit only zombies act; the oracle replays their frames."""
    yield from push_steps(w, s)
    if done(w, s):
        return
    yield from spark_steps(w, s)
    yield from instance_steps(w, s)
    yield from manager_steps(w, s)
    yield from server_steps(w, s)


def server_steps(w: World, s: Scope) -> Iterator[Step]:
    """Servers crash, and the state server writes its file."""
    if w.budget.queue_loss:
        yield Step("the queue server is lost", _queue_lost(w, s), True)
    if w.disk != w.state:
        yield Step("what the state server did is on disk now", w._replace(disk=w.state))
    if w.budget.state_crash:
        left = w.disk._replace(life=w.state.life + 1)
        world = w._replace(state=left, disk=left, budget=spend(w.budget, "state_crash"))
        yield Step("the state server restarts from its file", world, True)


def _queue_lost(w: World, s: Scope) -> World:
    """Log, answers and owner are gone. Connected attempts fail; an attempt that has not begun reaches the new server."""
    fresh = {p.task for p in w.producers if p.n == 1}
    lost = [t for t in {*wanted(w), *(p.task for p in w.producers)} if t not in fresh]
    w = w._replace(queue=QueueServer(w.queue.life + 1), budget=spend(w.budget, "queue_loss"))
    for task in lost:
        w = give_up(w, task, zombie=False)
    return w


def settle(w: World, s: Scope) -> World:
    """The world without parts that cannot matter any more, so that worlds that differ only in those are one."""
    q, r = w.queue, s.rules
    if not w.budget.state_crash and w.disk is not w.state:
        w = w._replace(disk=w.state)  # only a crash loses what is not on disk
    readers = {lane_of(w, s, t) for t in wanted(w)}
    known = dict(q.newest)
    live = []
    for p in w.producers:
        lane = lane_of(w, s, p.task)
        if not r.stale_at_push or lane in readers or known.get(lane.part, lane.label) <= lane.label:
            live.append(p)
    older = {lane_of(w, s, p.task) for p in live} if r.stale_at_push else set()
    newest = tuple(x for x in q.newest if any(lane.part == x[0] and lane.label < x[1] for lane in older))
    out = tuple(x for x in q.out if x[0] in readers)
    accepted = q.accepted
    if r.n_per_attempt:
        keys = {accepted_key(lane_of(w, s, p.task), s) for p in live}
        accepted = tuple(x for x in accepted if x[0] in keys)
    instances = sorted(_settled(me, w, s) for me in w.instances if not _fenced(me, w, s))
    return w._replace(
        queue=q._replace(out=out, accepted=accepted, newest=newest),
        instances=tuple(instances),
        producers=tuple(sorted(live)),
    )


def _fenced(me: Instance, w: World, s: Scope) -> bool:
    """Whether all that it could still do would be refused: it leaves at its next step, at any time."""
    if me.token == w.state.owner and me.owns:
        return False
    if not s.rules.fence and me.owns:
        return False
    if me.queue_life != w.queue.life:
        return True
    return me.token < max(w.queue.owner, w.state.owner) and me.token != w.queue.owner


def _settled(me: Instance, w: World, s: Scope) -> Instance:
    """The instance without pending answers that others have emitted meanwhile: they would be refused. Its `emitted` is then not behind."""
    if me.pending and s.rules.emit_once and me.queue_life == w.queue.life:
        return me._replace(pending=tuple(a for a in me.pending if a.seq > w.queue.emitted))
    return me
