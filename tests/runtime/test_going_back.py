"""A rollback to a version that cannot read the newer one's state: from what was kept, and the input since."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.conftest import Servers
from tests.runtime.conftest import P, Process
from tests.runtime.test_following import cents, counter
from tests.runtime.test_keyed import Attempt
from udo_protocol import rewinding, slot

Start = Callable[..., Process]


def update(servers: Servers, follower: Process, window_ms: int = 60_000) -> None:
    state, queue = servers.state(), servers.queue()
    slot.promote(state, queue, P, follower.token, lambda: rewinding.keep(state, queue, P, {"digest": "former"}, window_ms))


def rollback(start: Start, servers: Servers, **more: int) -> Process:
    former = counter(start, follow="kept", **more)
    assert former.report is not None and former.report["ok"], former.report
    state, queue = servers.state(), servers.queue()
    slot.promote(state, queue, P, former.token, lambda: rewinding.rewind(state, P))
    rewinding.release(queue, P)
    return former


def kept_keys(servers: Servers) -> list[bytes]:
    return servers.state().call("KEYS", f"{P}kept*") + servers.queue().call("HKEYS", f"{P}pins")


def test_the_former_version_goes_on_as_if_it_had_answered_all_along(start: Start, servers: Servers) -> None:
    counter(start)
    Attempt(servers, 0, 0).run(["a", "b"])
    mid = Attempt(servers, 1, 1)
    mid.send(["a"])
    assert mid.answers() == [("a", 2)]
    update(servers, cents(start))
    mid.send(["b"])
    mid.end()
    assert mid.answers() == [("b", 2)]
    assert Attempt(servers, 2, 2).run(["a", "c"]) == [("a", 3), ("c", 1)]
    late = Attempt(servers, 3, 3)
    late.send(["c"])
    assert late.answers() == [("c", 2)]
    former = rollback(start, servers)
    late.send(["a"])
    late.end()
    assert late.answers() == [("a", 4)]
    assert kept_keys(servers) == []
    former.process.kill()
    former.process.wait()
    counter(start)
    assert Attempt(servers, 4, 4).run(["a", "b", "c"]) == [("a", 5), ("b", 3), ("c", 3)]


def test_a_crash_right_after_the_rollback_loses_nothing(start: Start, servers: Servers) -> None:
    counter(start)
    Attempt(servers, 0, 0).run(["a"])
    update(servers, cents(start))
    Attempt(servers, 1, 1).run(["a"])
    former = rollback(start, servers)
    former.process.kill()
    former.process.wait()
    counter(start)
    assert Attempt(servers, 2, 2).run(["a"]) == [("a", 3)]


def test_when_the_input_since_is_not_in_the_log_any_more_it_is_too_late(start: Start, servers: Servers) -> None:
    counter(start, retained_bytes=20_000)
    Attempt(servers, 0, 0).run(["a"])
    newer = cents(start, retained_bytes=20_000)
    update(servers, newer)
    for epoch in range(1, 12):  # more than half of the bound
        Attempt(servers, epoch, epoch).run(["a"] * 100)
    report = counter(start, follow="kept", retained_bytes=20_000).report
    assert report is not None and not report["ok"]
    assert "too late to go back" in report["error"]["message"]
    assert Attempt(servers, 12, 12).run(["a"]) == [("a", 1102)]


def test_given_up_nothing_is_left(start: Start, servers: Servers) -> None:
    counter(start)
    Attempt(servers, 0, 0).run(["a", "b"])
    update(servers, cents(start))
    Attempt(servers, 1, 1).run(["a"])
    rewinding.forget(servers.state(), servers.queue(), P)
    assert kept_keys(servers) == []
    assert Attempt(servers, 2, 2).run(["a"]) == [("a", 3)]


@pytest.mark.parametrize("seed", range(3))
def test_updates_and_rollbacks_between_any_epochs_count_like_one_process(start: Start, servers: Servers, seed: int) -> None:
    """Enough state for the new version to write bases anew while the former ones are kept."""
    dice, counts = random.Random(seed), {}
    former = counter(start)
    newer: Process | None = None
    for epoch in range(10):
        attempt, expected = Attempt(servers, epoch, epoch), []
        for _ in range(dice.randint(1, 3)):
            keys = [f"k{dice.randrange(400)}" for _ in range(200)]
            for k in keys:
                counts[k] = counts.get(k, 0) + 1
                expected.append((k, counts[k]))
            attempt.send(keys)
        got = attempt.answers() if dice.random() < 0.5 else []
        if dice.random() < 0.5:
            if newer is None:
                newer = cents(start)
                update(servers, newer)
            else:
                former, newer = rollback(start, servers), None
        elif dice.random() < 0.3:
            (newer or former).process.kill()
            (newer or former).process.wait()
            if newer is None:
                former = counter(start)
            else:
                newer = cents(start, follow=False, promote=True)
        attempt.end()
        assert got + attempt.answers() == expected, f"epoch {epoch}"
