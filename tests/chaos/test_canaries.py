"""The judge of canaries under chaos must be able to say no."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from benchmarks.chaos.canaries import CANARY, COMPARED, SEEN, Canaries, Tried, wrong
from benchmarks.chaos.changes import MIGRATE, UPDATE, Changes
from benchmarks.chaos.kinds import HISTORY, OTHERWISE
from udo_protocol.registry.canary import Measured


@pytest.mark.parametrize(
    ("otherwise", "measured", "promoted", "why"),
    [
        (False, Measured(events=9, compared=4), True, ""),
        (False, Measured(events=9, compared=4, different=1), False, "got 1 different frames"),
        (True, Measured(events=9, compared=4, different=2), False, ""),
        (True, Measured(events=9, compared=4), False, "got none"),
        (True, Measured(compared=1), False, ""),  # the end of an epoch alone
        (True, Measured(events=9), False, ""),
        (True, Measured(events=9, compared=4, different=2), True, "not to pass"),
    ],
)
def test_equal_answers_are_asked_of_an_equal_version_and_others_of_one_that_answers_otherwise(
    otherwise: bool, measured: Measured, promoted: bool, why: str
) -> None:
    said = wrong(Tried(measured, promoted), otherwise=otherwise)
    assert why in said and bool(said) == bool(why)


@dataclass
class Fake:
    """A platform where each canary sees `different` frames, and passes if nothing is seen."""

    different: float
    dice: bool = False
    serving: str = "1"
    tried: list[str] = field(default_factory=list)

    def version(self, deployment: str) -> str:
        return self.serving

    def kept(self, deployment: str) -> str | None:
        return ""

    def change(self, deployment: str, version: str, *, back: bool) -> str:
        raise AssertionError("the platform decides by itself")

    def rolls_dice(self, deployment: str) -> bool:
        return self.dice

    def try_out(self, deployment: str, version: str, percent: float, for_s: float, ending: str) -> Tried:
        assert percent <= 100 and 0 < for_s <= 5 and ending
        self.tried.append(version)
        return Tried(Measured(events=5, compared=3, different=self.different), not self.different)


def test_every_kind_of_canary_is_drawn_and_what_it_sees_is_judged_and_counted() -> None:
    equal, differing = Fake(0), Fake(2)
    for platform, is_wrong in ((equal, lambda v: v == OTHERWISE), (differing, lambda v: v != OTHERWISE)):
        canaries = Canaries(platform, Changes(platform), 5.0)
        took = [step for seed in range(60) for step in canaries.run("d0", random.Random(seed))[0]]
        assert {"2", "3", OTHERWISE} == set(platform.tried) <= set(HISTORY.versions)
        assert len(canaries.broken) == sum(map(is_wrong, platform.tried)) > 0
        assert canaries.counts[COMPARED] == 3 * took.count(CANARY) > 0
        assert canaries.counts[SEEN] == platform.different * platform.tried.count(OTHERWISE)
        assert (UPDATE in took, MIGRATE in took) == (not platform.different,) * 2


def test_of_an_operator_that_rolls_dice_nothing_is_said() -> None:
    platform = Fake(2, dice=True)
    canaries = Canaries(platform, Changes(platform), 5.0)
    for seed in range(30):
        canaries.run("d0", random.Random(seed))
    assert not canaries.broken and not canaries.counts and OTHERWISE not in platform.tried
