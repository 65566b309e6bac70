"""The steps of Spark and its tasks: start attempts, push frames, take answers, fail, run stages again, restart, commit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.model import oracle
from tests.model.scope import Scope, contents
from tests.model.state import END, ERROR, REFUSALS, STALE, Answer, Frame, Label, Lane, Part, Producer, Spark, Task, World, at, put, spend


class Step(NamedTuple):
    """A possible next step. `chosen`: a fault or a free choice, taken from the budget; it does not count as progress."""

    text: str
    world: World
    chosen: bool = False
    problem: str | None = None


def lane_of(w: World, s: Scope, task: Task) -> Lane:
    """The lane's name on the wire."""
    run = task.run
    if not s.rules.run_in_label:
        run = 0
    elif not s.rules.runs_in_start_order:
        run = w.runs.index(task.run) if task.run in w.runs else len(w.runs)
    return Lane(task.part, Label(run, task.epoch, task.attempt))


def accepted_key(lane: Lane, s: Scope) -> object:
    """The key under which the slot counts accepted frames."""
    return (lane.part, lane.label) if s.rules.n_per_attempt else (lane.part, lane.label[:2])


def wanted(w: World) -> list[Task]:
    """The attempts that Spark waits for."""
    sp = w.spark
    return [Task(p, sp.run, sp.epoch, a) for p, part in enumerate(sp.parts) for a in part.running]


def answers_for(w: World, s: Scope, task: Task) -> tuple[Answer, ...]:
    """The answers that the attempt's collector finds."""
    if not s.rules.runs_in_start_order and task.run not in w.runs:
        return ()
    return dict(w.queue.out).get(lane_of(w, s, task), ())


def name(task: Task) -> str:
    """The task's name in traces."""
    return f"task p{task.part} run {task.run} epoch {task.epoch} attempt {task.attempt}"


def give_up(w: World, task: Task, *, zombie: bool) -> World:
    """Spark stops waiting for the attempt, which may go on unaware."""
    sp = w.spark
    producers = w.producers if zombie else tuple(x for x in w.producers if x.task != task)
    if task in wanted(w):
        part = sp.parts[task.part]
        part = part._replace(running=tuple(a for a in part.running if a != task.attempt))
        sp = sp._replace(parts=at(sp.parts, task.part, part))
    return w._replace(spark=sp, producers=producers)


def is_newest(w: World, task: Task) -> bool:
    """Whether no newer attempt of that partition was ever started."""
    return (task.run, task.epoch) == w.spark[:2] and task.attempt == w.spark.parts[task.part].attempts - 1


def push_steps(w: World, s: Scope) -> Iterator[Step]:
    """The next frame of each live producer reaches the queue server."""
    for i, producer in enumerate(w.producers):
        yield _push(w, s, i, producer.n)
        if w.budget.busy and producer.n < len(contents(s.case, producer.task)) and not s.rules.gap:
            # Frame n is refused BUSY with n + 1 in flight; with the gap rule that one is refused as well: nothing changes.
            step = _push(w._replace(budget=spend(w.budget, "busy")), s, i, producer.n + 1)
            back = tuple(x._replace(n=producer.n) if x.task == producer.task else x for x in step.world.producers)
            text = f"{name(producer.task)}: frame {producer.n} is refused BUSY, frame {producer.n + 1} behind it comes through"
            yield Step(text, step.world._replace(producers=back), True)


def _push(w: World, s: Scope, i: int, n: int) -> Step:
    task, q = w.producers[i].task, w.queue
    frames = contents(s.case, task)
    lane, content = lane_of(w, s, task), frames[n - 1]
    what = f"{name(task)} pushes frame {n} ({'END' if content.end else f'group {content.groups[0]}'})"
    newest, accepted = dict(q.newest).get(lane.part, lane.label), dict(q.accepted)
    if s.rules.stale_at_push and newest > lane.label:
        return Step(f"{what}: STALE", give_up(w, task, zombie=False), problem=oracle.refused(is_newest(w, task), name(task)))
    advanced = at(w.producers, i, *([Producer(task, n + 1)] if n < len(frames) else []))
    key = accepted_key(lane, s)
    if n <= accepted.get(key, 0):
        return Step(f"{what}: DUPLICATE", w._replace(producers=advanced))
    if s.rules.gap and n != accepted.get(key, 0) + 1:
        return Step(f"{what}: GAP", w)
    q = q._replace(
        log=(*q.log, Frame(lane, n, *content)),
        accepted=put(q.accepted, key, n),
        newest=put(q.newest, lane.part, max(newest, lane.label)),
    )
    runs = w.runs if task.run in w.runs else (*w.runs, task.run)
    return Step(f"{what}: number {q.base + len(q.log) - 1} of the log", w._replace(queue=q, producers=advanced, runs=runs))


def spark_steps(w: World, s: Scope) -> Iterator[Step]:
    """The steps of the driver."""
    sp, b = w.spark, w.budget
    for task in wanted(w):
        answers = answers_for(w, s, task)
        part = sp.parts[task.part]
        if answers and answers[-1].value == END and not any(a.value == ERROR for a in answers):
            problem = oracle.answers(s.case.events(task), sp.truth, answers)
            won = sp._replace(parts=at(sp.parts, task.part, part._replace(running=(), winner=task.attempt)))
            yield Step(f"{name(task)} succeeds", w._replace(spark=won), problem=problem)
        bad = next((a.value for a in answers if a.value in REFUSALS), None)
        if bad is not None:
            problem = oracle.refused(bad == STALE and is_newest(w, task), name(task))
            yield Step(f"{name(task)} is told {bad}", give_up(w, task, zombie=True), problem=problem)
        if b.fail:
            yield Step(f"Spark gives up {name(task)}", give_up(w, task, zombie=True)._replace(budget=spend(b, "fail")), True)
    for p, part in enumerate(sp.parts):
        if part.winner is None and not part.running:
            yield _start(w, p, "Spark starts", None)
        elif part.winner is None and b.twin:
            yield _start(w, p, "Spark starts a twin,", "twin")
        elif part.winner is not None and b.rerun:
            yield _start(w, p, "the stage runs again:", "rerun")
    if all(part.winner is not None for part in sp.parts):
        yield _commit(w, s)
    if b.restart:
        run = sp._replace(run=sp.run + 1)
        yield Step(
            f"the driver restarts: run {run.run} replays epoch {sp.epoch}",
            begin(w._replace(spark=run, budget=spend(b, "restart")), s),
            True,
        )


def _start(w: World, p: int, how: str, fault: str | None) -> Step:
    sp, part = w.spark, w.spark.parts[p]
    task = Task(p, sp.run, sp.epoch, part.attempts)
    parts = at(sp.parts, p, Part(part.attempts + 1, (*part.running, part.attempts), None))
    world = w._replace(spark=sp._replace(parts=parts), producers=(*w.producers, Producer(task, 1)))
    return Step(f"{how} {name(task)}", world._replace(budget=spend(w.budget, fault)) if fault else world, fault is not None)


def _commit(w: World, s: Scope) -> Step:
    sp = w.spark
    truth = list(sp.truth)
    for p, part in enumerate(sp.parts):
        assert part.winner is not None
        for g in s.case.events(Task(p, sp.run, sp.epoch, part.winner)):
            truth[g] += 1
    after = Spark(sp.run, sp.epoch + 1, (), tuple(truth))
    problem = oracle.durable(w, after, s.rules)
    world = w._replace(spark=after)
    return Step(f"Spark commits epoch {sp.epoch}", begin(world, s) if after.epoch < s.case.epochs else world, problem=problem)


def begin(w: World, s: Scope) -> World:
    """The world with the first attempts of an epoch; earlier attempts live on as zombies."""
    parts = s.case.parts(w.spark.run)
    first = tuple(Producer(Task(p, w.spark.run, w.spark.epoch, 0), 1) for p in range(parts))
    return w._replace(spark=w.spark._replace(parts=(Part(1, (0,), None),) * parts), producers=(*w.producers, *first))
