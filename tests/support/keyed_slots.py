"""Keyed deployments with several slots, their events, and the expected answers."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator

from tests.conftest import wait_until
from tests.support.cluster import Cluster
from tests.support.split_attempt import Job
from udo_protocol.errors import UdoError

# Answers the count of the event's key plus 1000 times the version; the first event of a negative key gets no answer.
COUNT = """
from udo_runtime import Operator
class run(Operator):
    def process(self, event, ctx):
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1
        if event["a"] >= 0 or n > 1:
            yield {{"b": n + 1000 * {version}}}
"""
# Answers with the key when its timer fires, a second after the event.
TIMED = """
import datetime as dt
from udo_runtime import Operator
class run(Operator):
    def process(self, event, ctx):
        ctx.timer(event["t"] + dt.timedelta(seconds=1))
        yield {"b": 0}
    def on_timer(self, key, when, ctx):
        yield {"b": key}
"""


def deploy(c: Cluster, slots: int = 3, source: str = COUNT.format(version=1), **manifest: object) -> Job:
    """Deploy the keyed operator as d, and return a query of it."""
    c.push("1", source, key=["a"], **manifest)
    c.client.deploy("d", "t", "1", slots=slots)
    wait_until(lambda: c.state()[0] == "answering", 60, "the deployment to answer")
    return Job(str(c.node.home / "node.sock"))


class Oracle:
    """The oracle: one process that gets each epoch once."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()

    def epoch(self, batches: list[list[int]]) -> list[int]:
        """The answers to an epoch, without the version."""
        found = []
        for a in (a for batch in batches for a in batch):
            self.counts[a] += 1
            found.append(self.counts[a])
        return found


def events(orders: random.Random, batches: int = 4) -> list[list[int]]:
    """Random batches of keys, none of them negative."""
    return [[orders.randrange(200) for _ in range(orders.randint(1, 60))] for _ in range(batches)]


def counted(answers: list[int]) -> list[int]:
    return [b % 1000 for b in answers]


def between(batches: list[list[int]], act: Callable[[], object], behind: int) -> Iterator[list[int]]:
    """The batches of an attempt; `act` is called after `behind` of them."""
    for at, batch in enumerate(batches):
        if at == behind:
            act()
        yield batch
    if behind == len(batches):  # the ENDs come later
        act()


def again_and_again(attempt: Callable[[], list[int]]) -> list[int]:
    """Repeat the attempt until it succeeds, as Spark does, and return its answers."""
    found: list[list[int]] = []

    def tried() -> bool:
        with contextlib.suppress(UdoError):
            found.append(attempt())
        return bool(found)

    wait_until(tried, 90, "an attempt to come through")
    return found[0]
