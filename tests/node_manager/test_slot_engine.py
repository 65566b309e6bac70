"""The decisions of a slot, without processes and servers (tests/support/slot_world.py): each row is an event and what follows from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node_manager.slots import effects as do
from node_manager.slots import events as on
from node_manager.slots.deaths import RESTART_MOST_S, SETTLED_S
from node_manager.slots.loading import Wanted
from node_manager.slots.recovery import LOADS_BEFORE_STATUS
from tests.support.slot_world import ASKING, SlotWorld, version
from udo_protocol.errors import Conflict, Fenced, OperatorError, SchemaError, ServerLost, SlotBroken

V1, V2, MISFIT = version("1"), version("2"), version("3", column="c")
K1, K2 = version("1", keyed=True), version("2", keyed=True)
LOST = ServerLost("the queue server is away")
BAD = OperatorError("t@2 did not load: no such module")


@pytest.fixture
def world() -> SlotWorld:
    return SlotWorld()


def names(effects: list[do.SlotEffect]) -> list[str]:
    return [type(effect).__name__ for effect in effects if not isinstance(effect, do.Report)]


def told(world: SlotWorld, request: on.SlotRequest) -> Any:
    [outcome] = world.outcomes[request]
    return outcome


def standing_by(world: SlotWorld, wanted: Wanted = V2) -> on.PrepareAsked:
    """Let a standby of this version get ready, beside the owner."""
    asked = on.PrepareAsked(wanted)
    world.happens(asked)
    world.loaded()
    assert world.state.standby is not None and told(world, asked) is world.state.standby[0]
    return asked


# -- starts and loads ------------------------------------------------------------------------------------------------


def test_a_version_is_loaded_becomes_the_owner_and_is_announced(world: SlotWorld) -> None:
    assert names(world.happens(on.ServeAsked(V1))) == ["ReadStats", "StartLoad"]
    assert world.state.life.state == "starting" and not world.state.served
    assert names(world.loaded()) == ["Attend", "PassOwnership", "AnnounceOwner"]
    assert world.state.life.state == "serving" and world.state.owner in world.attended
    assert world.happens(on.ServeAsked(V1)) == [], "it serves that already"


def test_the_first_owner_removes_a_status_that_a_former_manager_left_and_later_ones_only_their_own(world: SlotWorld) -> None:
    announced = lambda done: [effect.clear_status for effect in done if isinstance(effect, do.AnnounceOwner)]  # noqa: E731
    world.happens(on.ServeAsked(V1))
    assert announced(world.loaded()) == [True]
    for error, clear_status in [(None, False), (BAD, True)]:
        assert world.state.owner is not None
        world.dies(world.state.owner)
        world.passes(RESTART_MOST_S)
        for _ in range(LOADS_BEFORE_STATUS if error else 0):
            world.loaded(error=error)
            world.passes(60)
        assert announced(world.loaded()) == [clear_status]


@pytest.mark.parametrize(
    ("error", "pauses", "callers_know"),
    [(BAD, [1, 2, 4, 8, 16, 32, 60, 60], 1), (LOST, [1, 2, 4, 5, 5], None), (Fenced("a newer owner"), [1, 2, 4, 5, 5], None)],
)
def test_a_first_load_that_fails_is_tried_again_ever_later_and_callers_get_the_operators_error_at_once(
    world: SlotWorld, error: Any, pauses: list[float], callers_know: int | None
) -> None:
    world.happens(on.ServeAsked(V1))
    for tries, pause_s in enumerate(pauses, 1):
        done = world.loaded(error=error)
        assert (do.SetStatus(error) in done) == (world.state.error is error) == (callers_know is not None and tries >= callers_know)
        assert world.state.timers["replace"] == world.now + pause_s
        assert names(world.happens(on.ServeAsked(V1))) == [], "the next try is scheduled"
        assert "StartLoad" in names(world.passes(pause_s))
    world.loaded()
    assert world.state.error is None and world.state.owner is not None and world.state.load_failures == 0


def test_once_it_has_served_callers_get_the_error_when_it_looks_permanent(world: SlotWorld) -> None:
    world.dies(world.serving(V1))
    world.passes(0)
    for tries in range(1, LOADS_BEFORE_STATUS + 1):
        world.loaded(error=BAD)
        assert (world.state.error is BAD) == (tries == LOADS_BEFORE_STATUS)
        world.passes(60)
    assert world.state.life.state == "failed"


def test_another_version_ends_the_failure_and_the_loads_of_the_one_before(world: SlotWorld) -> None:
    world.happens(on.ServeAsked(V1))
    world.loaded(error=BAD)
    world.passes(1)
    [former] = world.loads
    assert names(world.happens(on.ServeAsked(V2))) == ["CancelLoad", "ReadStats", "StartLoad"]
    assert world.state.error is None and world.state.life.state == "starting"
    assert names(world.loaded(former)) == ["Retire"], "it got ready all the same"
    assert world.state.last_error == str(BAD), "that it was cancelled is no news"
    world.loaded()
    assert world.state.owner is not None and world.state.wanted == V2


def test_an_instance_that_did_not_load_is_killed_and_one_that_came_too_late_finishes(world: SlotWorld) -> None:
    world.happens(on.ServeAsked(V1))
    assert [effect.why for effect in world.loaded(error=BAD) if isinstance(effect, do.Retire)] == ["useless"]
    world.passes(1)
    world.owner_token = 99
    done = world.loaded()
    assert [effect.why for effect in done if isinstance(effect, do.Retire)] == ["replaced"]
    assert world.state.owner is None and world.state.error is BAD and "replace" in world.state.timers


def test_an_instance_that_dies_before_it_is_attended_is_replaced(world: SlotWorld) -> None:
    world.happens(on.ServeAsked(V1))
    [load] = world.loads
    world.loads.clear()
    instance = world.instance(V1, world.token[load])
    world.dead.append(instance)
    done = world.happens(on.LoadEnded(load, instance, None))
    assert "Remove" in names(done) and world.state.owner is None and world.state.restarts == 1


def test_whoever_became_the_owner_just_before_a_server_was_lost_is_replaced(world: SlotWorld) -> None:
    world.happens(on.ServeAsked(V1))
    world.faults[do.AnnounceOwner] = LOST
    assert names(world.loaded()) == ["Attend", "PassOwnership", "AnnounceOwner", "Retire"]
    assert world.state.owner is None and world.state.life.state == "replacing"
    world.passes(1)
    world.loaded()
    assert world.state.owner is not None


# -- deaths ----------------------------------------------------------------------------------------------------------


def test_the_first_death_is_followed_at_once_by_another_owner_and_further_ones_ever_later(world: SlotWorld) -> None:
    owner = world.serving(V1)
    for pause_s in (0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, RESTART_MOST_S):
        assert names(world.dies(owner)) == ["Remove", "ReadStats", "ReadStats"]
        assert world.state.life.state == "replacing" and world.state.timers["replace"] == pytest.approx(world.now + pause_s)
        world.passes(pause_s + 0.001)
        world.loaded()
        owner = world.state.owner
        assert owner is not None
    assert world.state.trouble is not None and world.state.trouble[0] == "failing" and "as 9 in a row did" in world.state.trouble[1]
    world.passes(SETTLED_S + 5)
    assert world.state.trouble is None, "it has lived with nothing to answer"


def test_the_frame_that_three_instances_died_on_is_answered_with_an_error_and_then_each_further_one_at_once(world: SlotWorld) -> None:
    owner = world.serving(V1)
    world.stats = replace(world.stats, depth_frames=2)
    blamed = []
    for _ in range(4):
        done = world.dies(owner)
        blamed += [effect.how for effect in done if isinstance(effect, do.FailHead)]
        world.passes(RESTART_MOST_S)
        world.loaded()
        owner = world.state.owner
        assert owner is not None
    assert blamed == ["3 instances in a row died on this frame; the last one: exit status 1", "exit status 1"]
    assert "on the last 2 frames" in str(world.state.trouble)
    world.stats = replace(world.stats, emitted=world.stats.emitted + 1)
    world.passes(5)
    assert world.state.trouble is None, "it has answered one"


def test_a_frame_that_cannot_be_answered_holds_nothing_up(world: SlotWorld) -> None:
    owner = world.serving(V1)
    world.stats = replace(world.stats, depth_frames=1)
    world.state.hung = owner
    world.faults[do.FailHead] = SlotBroken("the lane")
    done = world.dies(owner)
    assert do.Report("the frame it died on could not be answered", {"error": "the lane"}) in done
    assert "StartLoad" in names(world.passes(0))


def test_an_owner_that_hangs_is_killed_and_the_frame_is_to_blame(world: SlotWorld) -> None:
    world.serving(V1)
    world.stats = replace(world.stats, depth_frames=1)
    world.stuck_s = 60.0
    assert "Kill" not in names(world.passes(10))
    world.stuck_s = 60.1
    done = world.passes(5)
    [killed] = [effect for effect in done if isinstance(effect, do.Kill)]
    assert killed.reason == "killed: it did not answer a frame within 60 s (limits.answer_timeout_s)"
    assert [effect.how for effect in done if isinstance(effect, do.FailHead)] == [killed.reason]


@pytest.mark.parametrize(("lost", "planned"), [(do.Remove, False), (do.ReadStats, True)])
def test_a_step_that_fails_when_an_owner_has_died_is_made_up_for(world: SlotWorld, lost: type[do.SlotEffect], planned: bool) -> None:
    owner = world.serving(V1)
    world.faults[lost] = LOST
    world.dies(owner)
    assert world.raised is LOST and world.state.owner is None and ("replace" in world.state.timers) == planned
    assert "StartLoad" in names(world.passes(RESTART_MOST_S))


def test_a_broken_log_begins_anew_once_no_instance_is_left_that_could_break_it_again(world: SlotWorld) -> None:
    world.serving(K1)
    standing_by(world, K2)
    world.broken = True
    done = [name for name in names(world.passes(5)) if name in ("Kill", "Remove", "Retire", "BeginLogAnew", "StartLoad")]
    assert done == ["Kill", "Remove", "Retire", "BeginLogAnew", "StartLoad"], "and the standby is of the old log"
    assert world.state.trouble is not None and world.state.trouble[0] == "broken"
    world.loaded()
    world.stats = replace(world.stats, emitted=1)
    world.passes(1.5)
    assert world.state.trouble is None, "looked at soon"


def test_without_an_owner_a_broken_log_is_mended_at_the_next_look(world: SlotWorld) -> None:
    world.happens(on.ServeAsked(V1))
    world.loaded(error=BAD)
    del world.state.timers["replace"]
    world.broken = True
    assert "BeginLogAnew" in names(world.happens(on.TimerDue("look"))) and world.loads


# -- updates ---------------------------------------------------------------------------------------------------------


def test_an_update_is_prepared_beside_the_owner_and_promoted_without_anything_between(world: SlotWorld) -> None:
    former = world.serving(V1)
    asked = on.PrepareAsked(V2)
    assert names(world.happens(asked)) == ["StartLoad"]
    assert world.loads[0].follow and world.state.updating and world.state.owner is former
    assert names(world.loaded()) == ["Attend", "Tell"]
    promote = on.PromoteAsked()
    assert names(world.happens(promote)) == ["PassOwnership", "Retire", "AnnounceOwner", "Tell"]
    assert told(world, promote) is told(world, asked) is world.state.owner
    assert world.retired == [former] and world.state.wanted == V2 and not world.state.updating


def test_a_slot_is_updating_until_the_new_version_serves(world: SlotWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.serving(K1)
    world.happens(on.PrepareAsked(K2))
    perform, seen = world._perform, dict[str, bool]()

    def watched(effect: do.SlotEffect) -> object:
        seen[type(effect).__name__] = world.state.updating
        return perform(effect)

    monkeypatch.setattr(world, "_perform", watched)
    world.loaded()
    world.happens(on.PromoteAsked())
    assert seen["Attend"] and seen["AwaitTurn"] and seen["PassOwnership"]
    assert not seen["Tell"] and not world.state.updating


def test_a_keyed_update_waits_for_its_turn_and_state_that_is_kept_for_a_rollback_is_given_up_in_time(world: SlotWorld) -> None:
    world.serving(K1)
    standing_by(world, K2)
    world.kept_s = 60.0
    promote = ["AwaitTurn", "PassOwnership", "Retire", "AnnounceOwner", "KeptFor", "Tell"]
    assert names(world.happens(on.PromoteAsked())) == promote
    assert "ForgetKept" not in names(world.passes(59)) and "ForgetKept" in names(world.passes(2))


def test_a_version_that_running_queries_could_not_go_on_with_is_refused_unless_nobody_minds(world: SlotWorld) -> None:
    world.serving(V1)
    asked = on.PrepareAsked(MISFIT)
    assert names(world.happens(asked)) == ["Tell"]
    assert isinstance(told(world, asked), SchemaError) and "t@3 cannot replace t@1 under running queries" in str(told(world, asked))
    assert names(world.happens(on.PrepareAsked(MISFIT, check=False))) == ["StartLoad"]


def test_a_version_of_older_state_can_come_back_as_long_as_that_is_kept(world: SlotWorld) -> None:
    newer = version("2", keyed=True, state_version=1)
    world.serving(newer)
    refused, back = on.PrepareAsked(K1), on.PrepareAsked(K1)
    assert names(world.happens(refused)) == ["CanGoBack", "Tell"] and isinstance(told(world, refused), SchemaError)
    world.kept_s = 10.0
    assert names(world.happens(back)) == ["CanGoBack", "StartLoad"] and world.loads[-1].serving == 1


def test_a_server_that_is_lost_fails_the_request_that_asks_it(world: SlotWorld) -> None:
    world.serving(K1)
    asked = on.PrepareAsked(K2)
    world.faults[do.CanGoBack] = LOST
    world.happens(asked)
    assert told(world, asked) is LOST and world.raised is None


def test_without_a_standby_there_is_nothing_to_promote_and_the_reason_is_told(world: SlotWorld) -> None:
    world.serving(V1)
    first, second = on.PromoteAsked(), on.PromoteAsked()
    world.happens(first)
    assert str(told(world, first)) == "no update of d is prepared on node n1; prepare it first"
    standing_by(world)
    assert world.state.standby is not None
    assert names(world.dies(world.state.standby[0])) == ["Remove"]
    world.happens(second)
    assert isinstance(told(world, second), Conflict)
    assert str(told(world, second)).endswith("the prepared instance of t@2 died: exit status 1\nlast lines of its log:\nbye")
    assert world.state.owner is not None and world.state.restarts == 0


def test_a_standby_that_is_older_than_the_owner_is_replaced_by_a_fresh_one_and_promoted(world: SlotWorld) -> None:
    owner = world.serving(V1)
    standing_by(world)
    world.dies(owner)
    world.passes(0)
    world.loaded()  # another owner, with a newer token
    promote = on.PromoteAsked()
    assert names(world.happens(promote)) == ["PassOwnership", "Retire", "StartLoad"] and not world.outcomes[promote]
    assert names(world.loaded()) == ["Attend", "PassOwnership", "Retire", "AnnounceOwner", "Tell"]
    assert told(world, promote) is world.state.owner and world.state.wanted == V2


def test_a_fresh_standby_that_does_not_load_fails_the_promotion_and_the_owner_goes_on(world: SlotWorld) -> None:
    owner = world.serving(V1)
    standing_by(world)
    world.owner_token = owner.record.token = world.next_token()  # type: ignore[union-attr]
    promote = on.PromoteAsked()
    world.happens(promote)
    world.loaded(error=BAD)
    assert told(world, promote) is BAD and world.state.owner is owner


def test_a_standby_whose_owner_was_replaced_while_it_loaded_is_loaded_again(world: SlotWorld) -> None:
    world.serving(K1)
    asked = on.PrepareAsked(K2)
    world.happens(asked)
    assert names(world.loaded(error=Fenced("replaced"))) == ["Retire", "StartLoad"]
    assert world.loads[0].follow and not world.outcomes[asked]
    world.loaded()
    assert told(world, asked) is world.state.standby[0]  # type: ignore[index]


def test_a_promotion_that_loses_a_server_is_told_and_leaves_somebody_to_answer(world: SlotWorld) -> None:
    owner = world.serving(V1)
    standing_by(world)
    promote = on.PromoteAsked()
    world.faults[do.PassOwnership] = LOST
    world.happens(promote)
    assert told(world, promote) is LOST and world.state.owner is owner and len(world.retired) == 1
    world.passes(1)
    assert not world.loads, "the owner goes on"
    standing_by(world)
    world.dies(owner)
    world.faults[do.PassOwnership] = LOST
    world.happens(on.PromoteAsked())
    assert "StartLoad" in names(world.passes(0.11)), "there is none that could go on"


def test_a_promotion_replaces_a_crashed_owner_too(world: SlotWorld) -> None:
    owner = world.serving(V1)
    standing_by(world)
    world.dies(owner)
    world.passes(0)
    [load] = world.loads
    world.happens(promote := on.PromoteAsked())
    assert world.cancelled == [load] and told(world, promote) is world.state.owner
    assert names(world.loaded(load)) == ["Retire"]


@pytest.mark.parametrize("error", [None, Fenced("replaced")])
def test_an_update_that_is_given_up_while_it_is_prepared_leaves_nothing(world: SlotWorld, error: Fenced | None) -> None:
    owner = world.serving(V1)
    asked = on.PrepareAsked(V2)
    world.happens(asked)
    assert names(world.happens(on.DiscardAsked())) == ["CancelLoad"] and world.state.updating
    assert names(world.loaded(error=error)) == ["Retire", "Tell"]
    assert str(told(world, asked)) == str(error or "the start of t@2 was cancelled: something newer is wanted")
    assert world.state.owner is owner and not world.state.updating and not world.state.last_error


def test_an_update_that_is_given_up_when_it_is_prepared_leaves_nothing(world: SlotWorld) -> None:
    owner = world.serving(V1)
    standing_by(world)
    assert names(world.happens(on.DiscardAsked())) == ["Retire"]
    assert world.state.owner is owner and not world.state.updating and owner not in world.retired


def test_a_newer_update_takes_the_place_of_one_that_is_being_prepared(world: SlotWorld) -> None:
    world.serving(V1)
    first, second = on.PrepareAsked(V2), on.PrepareAsked(version("4"))
    world.happens(first)
    assert names(world.happens(second)) == ["CancelLoad", "StartLoad"]
    world.loaded(world.loads[0], Conflict("cancelled"))
    world.loaded()
    assert isinstance(told(world, first), Conflict) and told(world, second) is world.state.standby[0]  # type: ignore[index]


def test_a_slot_that_is_to_serve_something_else_changes_over_as_in_an_update(world: SlotWorld) -> None:
    former = world.serving(V1)
    assert names(world.happens(on.ServeAsked(MISFIT))) == ["StartLoad"] and world.state.owner is former
    assert names(world.loaded()) == ["Attend", "PassOwnership", "Retire", "AnnounceOwner", "Tell"]
    assert world.state.wanted == MISFIT and former in world.retired


# -- changes of the state --------------------------------------------------------------------------------------------


class Work:
    """Work on the state; `tokens`: those with which it was done."""

    def __init__(self, error: Exception | None = None) -> None:
        self.tokens: list[int] = []
        self._error = error

    def __call__(self, state: Any, queue: Any, token: int) -> None:
        if self._error is not None:
            raise self._error
        self.tokens.append(token)


def test_state_is_changed_between_two_owners(world: SlotWorld) -> None:
    former, work = world.serving(K1), Work()
    asked = on.StateChangeAsked(work)
    assert names(world.happens(asked)) == ["NextToken", "StartLoad"] and not work.tokens
    assert names(world.loaded()) == ["Attend", "ChangeState", "AwaitTurn", "PassOwnership", "Retire", "AnnounceOwner", "KeptFor", "Tell"]
    assert former.token < work.tokens[0] < world.state.owner.token and told(world, asked) is world.state.owner  # type: ignore[union-attr]


def test_without_an_owner_state_is_changed_at_once_and_what_was_loading_is_loaded_again(world: SlotWorld) -> None:
    world.happens(on.ServeAsked(K1))
    work = Work()
    asked = on.StateChangeAsked(work)
    assert names(world.happens(asked)) == ["NextToken", "ChangeState", "Tell"] and work.tokens and told(world, asked) is None
    assert "Retire" in names(world.loaded()) and world.state.owner is None, "its token is older"
    world.passes(1)
    world.loaded()
    assert world.state.owner is not None


def test_a_change_of_state_is_refused_while_an_update_is_under_way_or_when_the_owner_was_replaced_meanwhile(world: SlotWorld) -> None:
    owner, work = world.serving(K1), Work()
    early, late = on.StateChangeAsked(work), on.StateChangeAsked(work)
    standing_by(world, K2)
    world.happens(early)
    assert "an update of d is under way; change its state when that is done" in str(told(world, early))
    world.happens(on.DiscardAsked())
    world.happens(late)
    [load] = world.loads
    world.dies(owner)
    world.passes(0)
    world.loaded()  # another owner, with a newer token
    assert world.token[load] < world.owner_token
    world.loaded(load)
    assert str(told(world, late)) == "the instance of d was replaced meanwhile: nothing changed, try again" and not work.tokens
    assert [each.then for each in world.loads] == ["promote"], "a fresh one serves all the same"


def test_work_that_fails_is_told_and_a_fresh_owner_serves(world: SlotWorld) -> None:
    former, error = world.serving(K1), ValueError("no such session")
    asked = on.StateChangeAsked(Work(error))
    world.happens(asked)
    world.loaded()
    assert told(world, asked) is error and world.state.owner not in (None, former)


# -- adoption, and lost servers --------------------------------------------------------------------------------------


def test_an_adopted_owner_goes_on_as_any_other(world: SlotWorld) -> None:
    owner = world.instance(K1, world.next_token())
    world.kept_s = 30.0
    assert names(world.happens(on.AdoptAsked(owner, K1))) == ["Attend", "KeptFor"]
    assert world.happens(on.ServeAsked(K1)) == [] and world.state.served and owner.life.state == "owner"
    assert "ForgetKept" in names(world.passes(31))
    world.dies(owner)
    assert "StartLoad" in names(world.passes(0))


def test_beside_another_queue_server_everything_begins_anew(world: SlotWorld) -> None:
    owner = world.serving(V1)
    standing_by(world)
    standby = world.state.standby[0]  # type: ignore[index]
    world.state.trouble = ("failing", "as 3 in a row did")
    done = world.happens(on.QueueLost())
    assert [effect for effect in done if isinstance(effect, do.Retire)] == [do.Retire(i, "server lost") for i in (owner, standby)]
    assert names(done)[-1] == "StartLoad" and world.state.trouble is None and world.state.restarts == 1
    assert world.dies(owner) == [], "that it has ended is no news"
    world.loaded()
    assert world.state.owner not in (None, owner)


def test_loads_beside_the_former_queue_server_are_cancelled(world: SlotWorld) -> None:
    world.happens(on.ServeAsked(V1))
    [load] = world.loads
    world.happens(on.QueueLost())
    assert world.cancelled == [load] and len(world.loads) == 2 and world.state.restarts == 0


# -- sleep -----------------------------------------------------------------------------------------------------------


def test_a_slot_without_callers_sleeps_and_wakes_with_the_next_frame(world: SlotWorld) -> None:
    owner = world.serving(V1)
    asked = on.SleepAsked()
    assert names(world.happens(asked)) == ["ReadStats", "Retire", "Listen", "Tell"]
    assert told(world, asked) is None and world.state.asleep and world.retired == [owner]
    assert "StartLoad" not in names(world.passes(60)), "nobody is missed"
    assert names(world.happens(on.WakeAsked())) == ["ReadStats", "StartLoad"]
    assert not world.state.asleep and world.happens(on.WakeAsked()) == []


def test_a_sleeper_whose_bell_was_missed_is_woken_by_the_next_look(world: SlotWorld) -> None:
    world.serving(V1)
    world.happens(on.SleepAsked())
    world.stats = replace(world.stats, depth_frames=1)
    assert "StartLoad" in names(world.passes(5)) and not world.state.asleep


@pytest.mark.parametrize("why", ["frames", "keyed", "updating", "no owner"])
def test_a_slot_in_use_does_not_sleep(world: SlotWorld, why: str) -> None:
    owner = world.serving(K1 if why == "keyed" else V1)
    if why == "frames":
        world.stats = replace(world.stats, depth_frames=1)
    elif why == "updating":
        world.happens(on.PrepareAsked(V2))
    elif why == "no owner":
        world.dies(owner)
    asked = on.SleepAsked()
    world.happens(asked)
    assert str(told(world, asked)) == "slot 0 of deployment 'd' is in use" and not world.state.asleep


@pytest.mark.parametrize("event", [on.ServeAsked(V1), on.QueueLost()])
def test_anything_that_brings_an_owner_ends_the_sleep(world: SlotWorld, event: on.SlotEvent) -> None:
    world.serving(V1)
    world.happens(on.SleepAsked())
    assert "StartLoad" in names(world.happens(event)) and not world.state.asleep


def test_a_version_that_is_promoted_while_the_slot_sleeps_is_its_owner_and_replaced_as_any(world: SlotWorld) -> None:
    world.serving(V1)
    world.happens(on.SleepAsked())
    standing_by(world)
    world.happens(on.PromoteAsked())
    assert not world.state.asleep and world.state.owner is not None
    world.dies(world.state.owner)
    assert "StartLoad" in names(world.passes(0))


# -- the end ---------------------------------------------------------------------------------------------------------

STOP = on.StopAsked(drop=True, letters_to=None, within_s=8.0)


def _nothing(world: SlotWorld) -> None:
    pass


def _starting(world: SlotWorld) -> None:
    world.happens(on.ServeAsked(V1))


def _failed(world: SlotWorld) -> None:
    _starting(world)
    world.loaded(error=BAD)


def _serving(world: SlotWorld) -> None:
    world.serving(V1)


def _replacing(world: SlotWorld) -> None:
    world.dies(world.serving(V1))


def _preparing(world: SlotWorld) -> None:
    world.serving(V1)
    world.happens(on.PrepareAsked(V2))


def _prepared(world: SlotWorld) -> None:
    world.serving(V1)
    standing_by(world)


def _changing(world: SlotWorld) -> None:
    world.serving(K1)
    world.happens(on.StateChangeAsked(Work()))


def _asleep(world: SlotWorld) -> None:
    world.serving(V1)
    world.happens(on.SleepAsked())


@pytest.mark.parametrize("in_time", [True, False])
@pytest.mark.parametrize("state", [_nothing, _starting, _failed, _serving, _replacing, _preparing, _prepared, _changing, _asleep])
def test_a_slot_can_be_stopped_at_any_moment_and_starts_nothing_any_more(world: SlotWorld, state: Any, in_time: bool) -> None:
    state(world)
    under_way = list(world.loads)
    done = world.happens(STOP)
    assert world.finished == (not under_way) and world.cancelled == under_way
    after = [on.PrepareAsked(V2), on.PromoteAsked(), on.StateChangeAsked(Work()), on.SleepAsked()]
    for event in (*after, on.ServeAsked(V1), on.WakeAsked(), on.QueueLost(), on.TimerDue("look"), on.DiscardAsked(), STOP):
        done += world.happens(event)
    assert all(str(told(world, request)) == "deployment d has been stopped on node n1" for request in after)
    stray = world.instance(V1, world.next_token())
    done += world.happens(on.AdoptAsked(stray, V1))
    if in_time:
        for load in under_way:
            done += world.loaded(load)
    else:
        done += world.passes(8.0)
    assert world.finished and world.state.life.state == "stopped"
    for load in list(world.loads):  # too late
        done += world.loaded(load)
    assert "StartLoad" not in names(done) and not world.state.timers
    assert world.state.owner is None and world.state.standby is None
    assert all(len(outcomes) == 1 for outcomes in world.outcomes.values())
    assert set(world.attended) <= {*world.retired, *world.dead} and stray in world.retired


# -- any order of events ---------------------------------------------------------------------------------------------

FAULTS = [*((effect, LOST) for effect in ASKING), (do.PassOwnership, Fenced("newer")), (do.PassOwnership, Conflict("too late"))]
ENDS = [*[(None, True)] * 8, (BAD, True), (BAD, False), (LOST, True), (LOST, False), (Fenced("replaced"), True)]
ASKED = [
    *(lambda: on.ServeAsked(V1), lambda: on.ServeAsked(V2), lambda: on.PrepareAsked(V1), lambda: on.PrepareAsked(V2)),
    *(lambda: on.PrepareAsked(MISFIT), lambda: on.PrepareAsked(K2), on.PromoteAsked, on.PromoteAsked, on.DiscardAsked, on.SleepAsked),
    *(on.WakeAsked, on.QueueLost, lambda: on.StateChangeAsked(Work()), lambda: on.StateChangeAsked(Work(ValueError("no")))),
    lambda: on.TimerDue("look"),
]


def _draw(world: SlotWorld, draw: Any) -> None:
    """Let one thing happen, perhaps while a server is lost."""
    alive = [i for i in world.attended if i not in world.dead]
    world.faults = dict([draw(st.sampled_from(FAULTS))]) if draw(st.integers(0, 5)) == 5 else {}
    what = draw(st.sampled_from([*["loaded"] * 4 * bool(world.loads), "asked", "asked", "passes", *["dies"] * bool(alive), "log"]))
    if what == "loaded":
        error, started = draw(st.sampled_from(ENDS))
        world.loaded(draw(st.sampled_from(world.loads)), error, started=started)
    elif what == "asked":
        world.happens(draw(st.sampled_from(ASKED))())
    elif what == "passes":
        world.passes(draw(st.sampled_from([0.1, 0.0, 1.0, 5.0, 60.0])))
    elif what == "dies":
        world.dies(draw(st.sampled_from(alive)))
    elif what == "log":
        world.broken, world.stuck_s = draw(st.sampled_from([(False, 0.0), (False, 0.0), (False, 100.0), (True, 0.0)]))
        world.stats = replace(world.stats, depth_frames=draw(st.integers(0, 2)), emitted=world.stats.emitted + draw(st.integers(0, 2)))


def _check(world: SlotWorld) -> None:
    s = world.state
    there = [i for i in world.attended if i not in world.retired and i not in world.dead]
    known = [i for i in (s.owner, s.standby and s.standby[0]) if i is not None]
    assert there == [] or set(there) <= set(known), "whoever is no owner and no standby was retired"
    assert not set(known) & set(world.retired), "and whoever was retired is neither"
    assert sum(i.life.state == "owner" for i in there) <= 1
    assert all(len(outcomes) <= 1 for outcomes in world.outcomes.values())
    waiting = {request for request, outcomes in world.outcomes.items() if not outcomes}
    assert waiting == {load.request for load in s.loads if load.request} - {r for r, outcomes in world.outcomes.items() if outcomes}
    assert set(s.loads) == set(world.loads)


def _look(world: SlotWorld) -> None:
    """Whatever has failed, the next look makes sure that there will be an owner."""
    s = world.state
    world.faults.clear()
    world.happens(on.TimerDue("look"))
    assert s.wanted is None or s.owner is not None or s.owner_loading or "replace" in s.timers or s.asleep


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_whatever_happens_there_is_one_owner_and_each_request_is_told_once(data: st.DataObject) -> None:
    world = SlotWorld()
    if (first := data.draw(st.sampled_from([V1, K1, None]))) is not None:
        world.serving(first)
    for _ in range(data.draw(st.integers(1, 30))):
        _draw(world, data.draw)
        _check(world)
    _look(world)
    _check(world)
    healed = world.now + 200
    while world.now < healed and world.state.wanted is not None and world.state.owner is None and not world.state.asleep:
        world.broken, world.stuck_s = False, 0.0
        for load in list(world.loads):
            world.loaded(load)
        world.passes(5)
    assert world.state.wanted is None or world.state.owner is not None or world.state.asleep
    done = world.happens(STOP)
    done += [effect for load in list(world.loads) for effect in world.loaded(load)]
    assert world.finished and "StartLoad" not in names(done)
    assert all(len(outcomes) == 1 for outcomes in world.outcomes.values())
    assert set(world.attended) <= {*world.retired, *world.dead}
