"""The monitor of slots: rates from looks, checked by hand, and the signals of a real node under a known load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elasticity.bottleneck import fuzzy
from node_manager.control.looks import SlotLook, SlotRates, rates
from node_manager.control.metering import Meter
from node_manager.control.monitor import KEPT_LOOKS, Monitor
from node_manager.manager import Manager
from tests.conftest import wait_until
from tests.node_manager.conftest import Daemon, Lane, add, put_image
from udo_cli.commands.explain import explained
from udo_protocol.limits import DEFAULT
from udo_protocol.registry.wanted import WantedDeployment

# One frame under way, at an instance with one core and 1 GB that has answered nothing yet.
FIRST = SlotLook(
    at_s=0.0,
    owner="i",
    tail=0,
    emitted=0,
    lanes=1,
    retained_bytes=0,
    events_in=0,
    events_out=0,
    frames=0,
    busy_s=0.0,
    cpu_s=0.0,
    rss_bytes=250,
    cores=1.0,
    memory_bytes=1000,
)
SLEEPY = """
import time
from udo_runtime import operator
@operator
def run(batch):
    time.sleep(0.05)
    return {"b": batch.column("a")}
"""


def looks(n: int, **per_s: float) -> list[SlotLook]:
    """Return `n` looks, one per second; fields named in per_s grow by that much from one to the next."""
    return [replace(FIRST, at_s=float(i), **{name: getattr(FIRST, name) + i * by for name, by in per_s.items()}) for i in range(n)]


def seen(found: SlotRates | str) -> SlotRates:
    assert isinstance(found, SlotRates), found
    return found


def test_rates_computed_by_hand() -> None:
    # given 8 frames/s pushed and 6 answered, of 5 events each, 2 of which have an answer; 0.1 s per frame in the operator; half a core
    steady = looks(11, tail=8, emitted=6, frames=6, events_in=30, events_out=12, busy_s=0.6, cpu_s=0.5)
    r = seen(rates(steady, 10.0))
    assert (r.arrivals, r.answers, r.outputs) == pytest.approx((40, 30, 12))
    assert (r.cpu, r.busy, r.memory, r.use) == pytest.approx((0.5, 0.6, 0.25, 0.6))
    assert (r.backlog, r.growth) == pytest.approx((100, 10))  # 20 frames with 5 events each are waiting
    assert r.service_ms == pytest.approx(100)
    # then by Little's law: 2, 4 ... 20 frames in the slot, 11 on average, at 6 a second
    assert r.response_ms == pytest.approx(1000 * 11 / 6)


def test_only_the_window_counts() -> None:
    idle = looks(100)
    busy = [replace(look, at_s=99 + look.at_s) for look in looks(11, tail=10, emitted=10, frames=10, events_in=10, events_out=10)]
    assert seen(rates([*idle, *busy], 10.0)).answers == pytest.approx(10)
    assert seen(rates([*idle, *busy], 100.0)).answers == pytest.approx(100 / 100)


def test_counters_that_are_published_late_do_not_make_a_slot_look_idle() -> None:
    # given 4 frames/s that are answered, none of which was counted within the window
    before = replace(FIRST, frames=100, events_in=1000, events_out=1000, busy_s=20.0)
    late = [replace(before, at_s=float(i), tail=4 * i, emitted=4 * i) for i in range(11)]
    r = seen(rates(late, 10.0))
    assert (r.answers, r.busy, r.service_ms) == pytest.approx((40, 0.8, 200))


def test_a_frame_that_takes_longer_than_the_window_is_all_of_its_time() -> None:
    assert seen(rates([replace(look, tail=1) for look in looks(11)], 10.0)).busy == 1.0


def test_callers_are_held_back_while_they_have_about_as_many_frames_under_way_as_they_may() -> None:
    waiting = (8, 7, 6, 5, 0, 8, 8, 8, 8, 8, 8)
    steady = looks(11, tail=8, emitted=8, frames=8, events_in=8, events_out=8)
    full = [replace(look, tail=look.tail + n, most_frames=8) for look, n in zip(steady, waiting, strict=True)]
    assert seen(rates(full, 10.0)).held == pytest.approx(0.8)
    assert seen(rates([replace(look, most_frames=16) for look in full], 10.0)).held == 0
    assert seen(rates([replace(look, most_frames=0) for look in full], 10.0)).held == 0, "without lanes nobody is held back"


def test_what_was_not_measured_is_no_figure_of_zero() -> None:
    assert rates([], 10.0) == "it has not been looked at yet"
    assert rates([replace(look, owner="") for look in looks(11)], 10.0) == "it has no owner"
    assert rates(looks(3), 10.0) == "it has been looked at for 2 s of 10"
    unpublished = "its instance has not published its counters"
    ends = looks(11, tail=1, emitted=1)
    assert rates([replace(look, published=False) for look in ends], 10.0) == unpublished
    assert rates([*looks(11), replace(FIRST, at_s=11.0, tail=1, emitted=1)], 10.0) == unpublished, (
        "what was just answered is not counted yet"
    )
    r = seen(rates(ends, 10.0))
    assert (r.arrivals, r.answers, r.use) == (0, 0, 0), "frames without events: a keyed slot without work answers ends of epochs"
    assert seen(rates(looks(11), 10.0)).answers == 0, "without frames there is nothing to publish"


def test_an_owner_that_is_replaced_and_a_log_that_begins_anew_break_no_rate() -> None:
    steady = looks(11, tail=8, emitted=8, frames=8, events_in=8, events_out=8, cpu_s=0.5)
    other = [replace(look, owner="j", cpu_s=look.cpu_s - 3) if look.at_s >= 6 else look for look in steady]
    assert seen(rates(other, 10.0)).cpu == pytest.approx(0.5)
    anew = [replace(look, tail=look.tail + (1 << 50), emitted=look.emitted + (1 << 50)) if look.at_s >= 6 else look for look in steady]
    assert seen(rates(anew, 10.0)).answers == pytest.approx(8)


@pytest.fixture
def monitor(manager: Manager, tmp_path: Path) -> Iterator[Monitor]:
    """Another monitor of the manager, which looks only when the test says so."""
    made = Monitor(manager.servers, manager.driver, manager.deployments, Meter(tmp_path / "usage.json"), 10.0)
    yield made
    made.stop()


@pytest.mark.long
def test_a_round_remembers_each_slot_and_forgets_those_that_have_gone(manager: Manager, monitor: Monitor) -> None:
    home = manager.settings.home
    manager.deploy(WantedDeployment("d", "t", "1", put_image(home, add(1))), 30)
    manager.deploy(WantedDeployment("e", "t", "1", put_image(home, add(2))), 30)
    manager.scaling.scale("d", 2, 30)
    rounds = list[float]()
    monitor.listeners.append(rounds.append)

    for at_s in range(KEPT_LOOKS + 20):
        monitor.look(float(at_s))

    numbers = [own.number for own in manager.deployments.find("d").own]
    assert len(rounds) == KEPT_LOOKS + 20
    for number in numbers:
        kept = monitor.looks("d", number)
        assert [look.at_s for look in kept] == [float(x) for x in range(20, KEPT_LOOKS + 20)], "the series is bounded"
        assert kept[-1].owner and kept[-1].rss_bytes > 1 << 20 and kept[-1].memory_bytes > 1 << 20
    manager.undeploy("e")
    monitor.look(1000.0)
    assert monitor.looks("e", 0) == () and monitor.looks("d", 0)


def test_a_slot_whose_keys_an_operator_broke_has_no_figures_and_others_do(manager: Manager, monitor: Monitor) -> None:
    home = manager.settings.home
    for name in ("d", "e"):
        manager.deploy(WantedDeployment(name, "t", "1", put_image(home, f"{add(1)}# {name}\n")), 30)
    conn = manager.servers.connect("queue")
    conn.call("SET", "udo:d:0:emitted", "nonsense")
    conn.close()
    monitor.look(1.0)
    assert monitor.looks("d", 0) == () and len(monitor.looks("e", 0)) == 1


@pytest.mark.long
def test_signals_follow_a_real_load(daemon: Daemon, lane: Callable[..., Lane]) -> None:
    """The bounds are on reported shares, not on time: an operator that sleeps 50 ms a frame is busy for most of the time."""
    daemon.deploy(SLEEPY)
    caller = lane()

    def busy() -> bool:
        for _ in range(4):
            caller.send([1, 2, 3])
        for _ in range(4):
            caller.receive()
        [s] = daemon.api.signals("d").slots
        return not s.missing and s.busy > 0.6

    wait_until(busy, 60, "the slot to be busy")
    reply = daemon.api.signals("d")
    [s] = reply.slots
    assert s.service_ms >= 50 and s.response_ms >= 50 and s.lanes == 1
    assert 0 < s.answers <= 61 and s.answers == s.outputs and s.cpu < s.busy  # 20 frames/s of 3 events at most
    assert reply.node == "n1" and reply.cores >= 1 and reply.watched_s > reply.monitor_cpu_s > 0
    wait_until(lambda: daemon.api.signals("d").slots[0].busy < 0.05, 60, "the slot to be idle again")
    assert not daemon.api.signals("d").slots[0].missing


@pytest.mark.long
def test_an_operator_that_its_callers_wait_for_is_a_bottleneck_however_little_waits_in_its_queue(
    daemon: Daemon, lane: Callable[..., Lane]
) -> None:
    """A window of 50 ms frames is 0.4 s of work, and all that one Spark task has under way."""
    daemon.deploy(SLEEPY)
    caller = lane()
    for _ in range(DEFAULT.window_frames):
        caller.send([1, 2, 3])
    found: dict[str, Any] = {}

    def out() -> bool:
        for _ in range(20):
            caller.receive()
            caller.send([1, 2, 3])
        found.update(explained(daemon.api.signals("d"), "d", fuzzy.shipped(), "shipped"))
        return bool(found["verdict"] == "scale out")

    wait_until(out, 60, "the verdict that it is to be scaled out")
    [s] = found["slots"]
    assert s["held"] > 0.75 and s["growth"] < 10 and s["backlog"] <= 3 * DEFAULT.window_frames
    assert s["backlog"] / s["answers"] < 1 < 5 <= found["inputs"]["queue"]
    for _ in range(DEFAULT.window_frames):
        caller.receive()
    wait_until(lambda: daemon.api.signals("d").slots[0].held == 0, 60, "it to be over")
