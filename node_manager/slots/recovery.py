"""The decisions by which a slot without an owner gets the next one: after a death, a load that failed, or the loss of its log."""

from __future__ import annotations

from node_manager.instances.instances import Instance
from node_manager.slots import effects as do
from node_manager.slots.deaths import RESTART_MOST_S, SETTLED_S, backoff_s
from node_manager.slots.effects import Steps
from node_manager.slots.events import InstanceExited, SlotLoad
from node_manager.slots.loading import Wanted
from node_manager.slots.state import SlotState
from udo_protocol.errors import Fenced, PeerError, ServerLost, SlotBroken, UdoError
from udo_protocol.queue.slot import SlotStats

# Once a slot has served, this many failed loads in a row look permanent: callers get the error.
LOADS_BEFORE_STATUS = 3
_RELOAD_FIRST_S, _RELOAD_MOST_S = 1.0, 60.0
# The longest pause between loads that fail because a server is away: it may be back soon.
_SERVER_BACK_S = 5.0


def load(s: SlotState, wish: SlotLoad) -> Steps[None]:
    """Start a load."""
    s.loads[wish] = True
    yield do.StartLoad(wish)


def cancel(s: SlotState, *, owners: bool = True, updates: bool = True) -> Steps[None]:
    """Cancel the loads of owners, those of updates' standbys, or both."""
    for one in [one for one, goes_on in s.loads.items() if goes_on and (updates if one.update else owners)]:
        s.loads[one] = False
        yield do.CancelLoad(one)


def discard(s: SlotState) -> Steps[None]:
    """Give up an update that is being prepared, or is prepared."""
    yield from cancel(s, owners=False)
    if (standby := take_standby(s)) is not None:
        yield do.Retire(standby[0])


def take_standby(s: SlotState) -> tuple[Instance, Wanted] | None:
    """Take the standby out; there is none afterwards."""
    standby, s.standby = s.standby, None
    return standby


def lose_owner(s: SlotState) -> None:
    """Note that the owner is gone."""
    s.life.move("replacing")
    s.owner = None


def replace_owner(s: SlotState) -> Steps[None]:
    """Load an owner, unless there is one or one is being loaded."""
    if s.wanted is not None and s.owner is None and not s.owner_loading:
        replace_in(s, RESTART_MOST_S)  # in case a server is lost in the next step
        yield from _mend(s)
        yield from load(s, SlotLoad(s.wanted, "own"))
    s.timers.pop("replace", None)


def replace_in(s: SlotState, after_s: float) -> None:
    """Replace the owner after that time."""
    s.timers["replace"] = s.now + after_s


def not_loaded(s: SlotState, error: UdoError) -> Steps[None]:
    """Try again after an owner failed to load, and report the error to callers once it looks permanent."""
    s.load_failures += 1
    lost = isinstance(error, (ServerLost, Fenced))
    most_s = _SERVER_BACK_S if lost else _RELOAD_MOST_S  # not the operator's fault: try again soon after the server is back
    replace_in(s, backoff_s(s.load_failures, _RELOAD_FIRST_S, most_s))
    if not lost and (not s.served or s.load_failures >= LOADS_BEFORE_STATUS):
        s.life.move("failed")
        s.error, s.status_stored = error, True
        yield do.SetStatus(error)


def exited(s: SlotState, event: InstanceExited) -> Steps[None]:
    """Handle the end of an instance, if it was the owner or the standby."""
    instance = event.instance
    if instance is s.owner:
        lose_owner(s)
        log = yield do.Remove(instance, owned=True)
        yield from _owner_died(s, instance, log)
    elif s.standby is not None and instance is s.standby[0]:
        s.standby = None
        log = yield do.Remove(instance, owned=False)
        s.last_error = f"the prepared instance of {instance.assigned.reference} died: {instance.exit}{log}"
        yield do.Report("standby died", {"instance": instance.name, "how": str(instance.exit)})


def _owner_died(s: SlotState, instance: Instance, log: str) -> Steps[None]:
    """Start the next owner, now or after a pause; a frame that owners keep dying on is answered with an error before that."""
    how = str(instance.exit)
    s.restarts += 1
    last_error = s.last_error = f"instance {instance.name} of {instance.assigned.reference} died: {how}"
    replace_in(s, RESTART_MOST_S)  # in case the server is lost in the next steps
    broken = yield from _mend(s)
    stats: SlotStats = yield do.ReadStats()
    hung, s.hung = instance is s.hung, None
    verdict = s.deaths.died(
        emitted=stats.emitted, waiting_frames=stats.depth_frames, lived_s=s.lived_s, hung=hung, broke=broken is not None
    )
    about = {"instance": instance.name, "how": how, "waiting_frames": stats.depth_frames, "in_a_row": s.deaths.in_a_row}
    yield do.Report("owner died", about)
    delay_s, on_head = verdict.delay_s, s.deaths.on_head
    if verdict.fail_head:
        in_vain = f"{on_head} instances in a row died on this frame; the last one: " if on_head > 1 and not hung else ""
        try:
            if (yield do.FailHead(instance, in_vain + how, log, s.keyed)):
                delay_s = s.deaths.failed_head()
        except PeerError as e:  # the operator broke keys of the lane; or a server is gone, which the next step sees
            yield do.Report("the frame it died on could not be answered", {"error": str(e)})
    replace_in(s, delay_s)
    s.pause_s = delay_s
    if broken is None and s.deaths.failing:
        s.trouble = ("failing", f"{last_error}, {s.deaths}")


def _mend(s: SlotState) -> Steps[SlotBroken | None]:
    """Start a new log if the operator corrupted the old one; the slot has no owner now. Return the damage."""
    try:
        yield do.ReadStats()
        return None
    except SlotBroken as e:
        yield from discard(s)
        yield do.BeginLogAnew(s.keyed)
        yield from _say_broken(s, e)
        return e


def _say_broken(s: SlotState, e: SlotBroken) -> Steps[None]:
    if s.trouble != (trouble := ("broken", str(e))):
        s.trouble = trouble
        yield do.Report("the operator corrupted the slot's log; starting a new log", {"error": str(e)})


def start_over(s: SlotState) -> Steps[None]:
    """Load an owner beside a new queue server, whatever there was beside the old one."""
    standby = take_standby(s)
    yield from cancel(s)
    lost = [i for i in (s.owner, standby and standby[0]) if i]
    if s.owner is not None:
        lose_owner(s)
    _forget_deaths(s)
    s.asleep = False
    for instance in lost:
        yield do.Retire(instance, "server lost")
    s.restarts += bool(lost)
    if s.wanted is not None:
        yield from load(s, SlotLoad(s.wanted, "own"))


def _forget_deaths(s: SlotState) -> None:
    """Forget former deaths, which say nothing about the present owner or log."""
    s.deaths.forget()
    s.trouble = None


def look(s: SlotState) -> Steps[None]:
    """Check the log, and whether the owner still answers."""
    try:
        stats: SlotStats = yield do.ReadStats(look=True)
    except SlotBroken as e:  # repaired once no instance is left that could corrupt it again
        yield from _say_broken(s, e)
        if s.owner is not None:
            yield do.Kill(s.owner, f"killed: {e}")
        elif "replace" not in s.timers:
            yield from replace_owner(s)
        return
    if s.owner is None or s.wanted is None:
        if s.asleep and stats.depth_frames:  # its bell was missed
            yield from wake(s)
        elif not s.asleep and "replace" not in s.timers:  # the step that should have scheduled it failed
            yield from replace_owner(s)
        return
    if s.deaths.answered(stats.emitted) or (not stats.depth_frames and s.lived_s > SETTLED_S):
        _forget_deaths(s)
    stuck_s, timeout_s = (yield do.WatchOwner(s.owner, s.owner_since or 0.0, stats, s.keyed)), s.wanted.silence_s
    if stuck_s > timeout_s:
        s.hung = s.owner  # the frame at the head is to blame
        starts = " and two limits.open_timeout_s" if s.wanted.image.manifest.own_process else ""
        yield do.Kill(s.owner, f"killed: it did not answer a frame within {timeout_s:g} s (limits.answer_timeout_s{starts})")


def wake(s: SlotState) -> Steps[None]:
    """Start an owner, if the slot sleeps."""
    if s.asleep:
        s.asleep = False
        yield from replace_owner(s)
