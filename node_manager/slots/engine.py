"""The decisions of one slot, without I/O, clock or threads: keeps an owner answering, replaces it when it dies or hangs (recovery.py),
prepares and promotes updates.

`decide` takes one event and is a generator of effects, which the slot's thread performs before it looks at another event: their order is
the order in which things are done. The states of a slot are the table in lifecycle.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

from node_manager.instances.instances import Instance
from node_manager.slots import effects as do
from node_manager.slots import events as on
from node_manager.slots import recovery
from node_manager.slots.deaths import RESTART_FIRST_S
from node_manager.slots.effects import Steps
from node_manager.slots.events import SlotLoad, SlotRequest
from node_manager.slots.loading import Wanted, given_up
from node_manager.slots.recovery import cancel, discard, load, lose_owner, replace_in, replace_owner, take_standby
from node_manager.slots.state import SlotState
from udo_protocol.errors import Conflict, Fenced, OperatorError, SchemaError, UdoError, Unavailable
from udo_protocol.formats.manifest import call_misfits, update_refusals
from udo_protocol.queue.slot import SlotStats

_LOOK_LEAST_S, _LOOK_MOST_S = 1.0, 5.0


def decide(s: SlotState, event: on.SlotEvent) -> Steps[None]:
    """Handle an event. A request that fails gets the error; other events raise it.

    `s.updating`, which other threads read, stays true until the standby is the owner: if key groups began to move in between, a rollback by
    the state kept in that step would bring them back.
    """
    s.was_updating = s.updating
    try:
        yield from _end(s, event) if s.ending else _HANDLERS[type(event)](s, event)
    except Exception as e:
        if not isinstance(event, SlotRequest):
            raise
        yield do.Tell(event, error=e)
        if not isinstance(e, UdoError):
            raise
    finally:
        s.was_updating = False


def plan(s: SlotState) -> None:
    """Set the time of the next look, unless it is set: after each event, however its decision ended."""
    if "look" not in s.timers and not s.ending:
        timeout_s = s.wanted.answer_timeout_s if s.wanted else _LOOK_MOST_S * 4
        look_s = max(_LOOK_LEAST_S, min(_LOOK_MOST_S, timeout_s / 4))
        s.timers["look"] = s.now + (_LOOK_LEAST_S if s.trouble else look_s)


def has_been_stopped(s: SlotState) -> Unavailable:
    """The error for callers that come after the slot has stopped."""
    return Unavailable(f"deployment {s.deployment} has been stopped on node {s.node}")


def _due(s: SlotState, timer: on.TimerDue) -> Steps[None]:
    s.timers.pop(timer.name, None)  # a look may also be asked for
    if timer.name == "look":
        yield from recovery.look(s)
    elif timer.name == "replace":
        yield from replace_owner(s)
    else:
        yield do.ForgetKept()


def _serve(s: SlotState, asked: on.ServeAsked) -> Steps[None]:
    wanted, s.asleep = asked.wanted, False
    if s.owner is not None:
        if wanted != s.wanted:
            yield from _bring(s, wanted, "promote")
        return
    if wanted != s.wanted:
        yield from cancel(s)
        s.wanted, s.error, s.load_failures = wanted, None, 0
        if s.life.state in ("new", "failed"):
            s.life.move("replacing" if s.served else "starting")
    elif "replace" in s.timers:  # it has just failed, and the next try is scheduled
        return
    yield from replace_owner(s)


def _adopt(s: SlotState, asked: on.AdoptAsked) -> Steps[None]:
    _serves(s, asked.owner, asked.wanted)
    yield do.Attend(asked.owner, adopted=True)
    yield from _watch_kept(s, asked.owner)


def _own(s: SlotState, instance: Instance, wanted: Wanted) -> Steps[None]:
    """Change the token, so that from here on this instance answers."""
    former = s.owner
    yield do.PassOwnership(instance, wanted, s.wanted, live=former is not None)
    _serves(s, instance, wanted)
    if former is not None:
        yield do.Retire(former)
    yield do.AnnounceOwner(instance, s.status_stored)
    s.status_stored = False
    yield from _watch_kept(s, instance)


def _serves(s: SlotState, owner: Instance, wanted: Wanted) -> None:
    s.life.move("serving")
    s.owner, s.owner_since, s.wanted, s.was_updating = owner, s.now, wanted, False
    s.error, s.load_failures, s.asleep = None, 0, False


def _retire(s: SlotState, instance: Instance, why: Literal["replaced", "useless"] = "replaced") -> Steps[None]:
    """Retire an instance that was to become the owner, and may have become it just before the server was lost."""
    if instance is s.owner:
        lose_owner(s)
    yield do.Retire(instance, why)


def _watch_kept(s: SlotState, owner: Instance) -> Steps[None]:
    """Set the timer that gives up the state kept for a rollback."""
    s.timers.pop("kept", None)
    if s.keyed and (left_s := (yield do.KeptFor(owner))) is not None:
        s.timers["kept"] = s.now + left_s


def _load_ended(s: SlotState, event: on.LoadEnded) -> Steps[None]:
    ended, instance, error = event.load, event.instance, event.error
    goes_on = s.loads.pop(ended)
    if error is None and not goes_on:
        error = given_up(ended.wanted)
    if error is None and instance is not None:
        try:
            yield do.Attend(instance)
            if not ended.update:
                yield from _own(s, instance, ended.wanted)
        except UdoError as e:  # a server was lost, or a newer owner came first
            error = e
        else:
            if ended.update:
                yield from _stand_by(s, ended, instance)
            return
    assert error is not None, "a load without an instance has failed"
    if instance is not None:
        yield from _retire(s, instance, "useless" if isinstance(error, OperatorError) else "replaced")
    if ended.update and goes_on and isinstance(error, Fenced):  # a fresh standby has a newer token
        yield from load(s, replace(ended))
    elif ended.update:
        yield do.Tell(ended.request, error=error)
    elif goes_on:
        yield from recovery.not_loaded(s, error)
    if goes_on:
        s.last_error = str(error)
        about = {"operator": ended.wanted.reference, "update": ended.update, "error": str(error)}
        yield do.Report("operator did not become ready", about)


def _stand_by(s: SlotState, loaded: SlotLoad, instance: Instance) -> Steps[None]:
    s.standby, request = (instance, loaded.wanted), loaded.request
    if loaded.work is not None and not (yield from _work(s, loaded.work, loaded.token, request)):
        request = None  # it has got its error, and the standby has to own the slot all the same
    if loaded.then == "promote":
        yield from _promote(s, request)
    else:
        yield do.Tell(request, instance)


def _prepare(s: SlotState, asked: on.PrepareAsked) -> Steps[None]:
    new = asked.wanted.image.manifest
    if asked.check and s.wanted is not None:
        old = s.wanted.image.manifest
        back = bool(new.key) and (yield do.CanGoBack(asked.wanted.image.digest))
        if why := (call_misfits if back else update_refusals)(old, new):
            raise SchemaError(
                f"{new.reference} cannot replace {old.reference} under running queries: {'; '.join(why)}. Deploy it under another name."
            )
    yield from _bring(s, asked.wanted, "stand by", asked)


def _bring(s: SlotState, wanted: Wanted, then: Literal["stand by", "promote"], request: SlotRequest | None = None) -> Steps[None]:
    """Load the version as an update's standby, in place of any other."""
    yield from discard(s)
    serving = s.wanted.image.manifest.state_version if s.wanted else 0
    yield from load(s, SlotLoad(wanted, then, request, follow=True, serving=serving))


def _promote(s: SlotState, request: SlotRequest | None) -> Steps[None]:
    """Make the standby the owner, and tell the request; Conflict if there is none."""
    if (standby := take_standby(s)) is None:
        why = s.last_error or "prepare it first"
        yield do.Tell(request, error=Conflict(f"no update of {s.deployment} is prepared on node {s.node}; {why}"))
        return
    instance, wanted = standby
    try:
        yield from cancel(s, updates=False)  # the new version replaces a crashed owner too
        if wanted.image.manifest.key:
            yield do.AwaitTurn()
        yield from _own(s, instance, wanted)
    except Fenced:
        # The owner was replaced after a crash since the standby was prepared; a fresh one has a newer token.
        yield do.Retire(instance)
        yield from load(s, SlotLoad(wanted, "promote", request))
    except UdoError as e:
        yield from _retire(s, instance)
        replace_in(s, RESTART_FIRST_S)
        yield do.Tell(request, error=e)
    else:
        yield do.Tell(request, instance)


def _change_state(s: SlotState, asked: on.StateChangeAsked) -> Steps[None]:
    if s.updating:
        raise Conflict(f"an update of {s.deployment} is under way; change its state when that is done")
    token = yield do.NextToken()
    if s.owner is not None and s.wanted is not None:
        yield from load(s, SlotLoad(s.wanted, "promote", asked, work=asked.work, token=token))
    elif (yield from _work(s, asked.work, token, asked)):  # an instance that is loading has an older token and is loaded again
        yield do.Tell(asked)


def _work(s: SlotState, work: on.StateWork, token: int, request: SlotRequest | None) -> Steps[bool]:
    """Do the work while that token owns the slot. False if that failed; the request gets the error."""
    try:
        yield do.ChangeState(work, token)
        return True
    except Fenced:
        why: Exception = Conflict(f"the instance of {s.deployment} was replaced meanwhile: nothing changed, try again")
    except Exception as e:
        why = e
    yield do.Tell(request, error=why)
    return False


def _sleep(s: SlotState, asked: on.SleepAsked) -> Steps[None]:
    """Only for operators without state, whose next owner needs nothing from the last one."""
    stats: SlotStats = yield do.ReadStats()
    if (owner := s.owner) is None or s.keyed or s.updating or stats.depth_frames:
        raise Conflict(f"slot {s.number} of deployment {s.deployment!r} is in use")
    lose_owner(s)
    yield do.Retire(owner)
    s.asleep, s.sleeps = True, s.sleeps + 1
    yield do.Listen(stats.emitted, s.sleeps)
    yield do.Report("asleep", {"operator": owner.assigned.reference}, "info")
    yield do.Tell(asked)


def _stop(s: SlotState, asked: on.StopAsked) -> Steps[None]:
    """Retire all instances; cancelled loads retire what they have started as they end."""
    s.life.move("stopping")
    s.stop_asked, s.timers = asked, {"stop": s.now + asked.within_s}
    owner, s.owner = s.owner, None
    if owner is not None:
        yield do.Retire(owner)
    yield from cancel(s)
    yield from discard(s)
    yield from _finish(s)


def _end(s: SlotState, event: on.SlotEvent) -> Steps[None]:
    """Handle an event of a slot that is being stopped, or has been."""
    match event:
        case SlotRequest():
            raise has_been_stopped(s)
        case on.AdoptAsked(owner):
            yield do.Retire(owner)
        case on.LoadEnded(ended) if ended in s.loads:
            yield from _load_ended(s, event)
        case on.LoadEnded(_, instance) if instance is not None:  # too late
            yield do.Retire(instance)
        case on.TimerDue(name):
            s.timers.pop(name, None)
    yield from _finish(s)


def _finish(s: SlotState) -> Steps[None]:
    """Finish once all loads have ended, or the time for that is over."""
    if (asked := s.stop_asked) is None or (s.loads and "stop" in s.timers):
        return
    late, s.loads, s.stop_asked = s.loads, {}, None
    for one in late:
        yield do.Tell(one.request, error=has_been_stopped(s))
    s.life.move("stopped")
    yield do.Finish(asked.drop, asked.letters_to, max(0.0, s.timers.pop("stop", s.now) - s.now))


_HANDLERS: Mapping[type[on.SlotEvent], Callable[[SlotState, Any], Steps[None]]] = {
    on.ServeAsked: _serve,
    on.AdoptAsked: _adopt,
    on.PrepareAsked: _prepare,
    on.PromoteAsked: _promote,
    on.DiscardAsked: lambda s, _: discard(s),
    on.StateChangeAsked: _change_state,
    on.SleepAsked: _sleep,
    on.WakeAsked: lambda s, _: recovery.wake(s),
    on.StopAsked: _stop,
    on.LoadEnded: _load_ended,
    on.InstanceExited: recovery.exited,
    on.QueueLost: lambda s, _: recovery.start_over(s),
    on.TimerDue: _due,
}
