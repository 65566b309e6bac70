"""A keyed query on a deployment over nodes, whose tasks ask any of the nodes, and the answers that one process would give."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.conftest import wait_until
from tests.support.nodes import Nodes
from tests.support.split_attempt import Job
from udo_protocol.errors import UdoError

COUNT = """
from udo_runtime import Operator
class run(Operator):
    def process(self, event, ctx):
        n = ctx.state["n"] = ctx.state.get("n", 0) + 1
        yield {{"b": n + 1000 * {version}}}
"""
KEYED = {"key": ["a"]}
# The time for which Spark's tasks wait for a node and are retried.
_TRIED_S = 90
PARTITIONS = 2


class Query:
    """A query on the deployment `count`, whose tasks run on any of the nodes. `store`: that of its state."""

    def __init__(self, cluster: Nodes, session: str, store: Path | None = None) -> None:
        self._cluster, self.counts, self._epoch = cluster, Counter[int](), -1
        self.orders = random.Random(session)
        self.version = int(cluster.client.deployment("count")["version"])
        self._jobs = [Job("", "count", session, tls=cluster.tls, store=store) for _ in range(PARTITIONS)]
        self.job = self._jobs[0]

    def epoch(self, node: str, *, version: int = 0, wait_s: float = 0.0) -> None:
        """Run the next epoch by a task that asks this node, and check its answers."""
        batches, expected = self.drawn()
        self.version = version or self.version
        self._ask(self.job, node, wait_s)
        assert self.job.epoch(self._epoch, batches) == [self.version * 1000 + n for n in expected]

    def asked(self, batches: Iterable[list[int]], expected: list[int]) -> None:
        """Run the epoch that was `drawn`, once, by a task that asks the same node as the task before; check its answers."""
        assert self.job.epoch(self._epoch, batches) == [self.version * 1000 + n for n in expected]

    def tried(self, nodes: str, strike: Callable[[], None]) -> None:
        """Run the next epoch in partitions that ask one node each; each is repeated until it succeeds, as Spark does. Check the answers.

        The strike comes between two batches of the first partition, at any moment of the other one.
        """
        batches, expected = self.drawn()
        places = [a for batch in batches for a in batch]
        strikes = [strike]

        def task(partition: int) -> list[int]:
            job, answers = self._jobs[partition], list[int]()
            mine = [[a for a in batch if job.partition_of(a, PARTITIONS) == partition] for batch in batches]

            def succeeded() -> bool:
                try:
                    events = _struck(mine, strikes) if partition == 0 else iter(mine)
                    answers[:] = job.epoch(self._epoch, events, partition=partition, partitions=PARTITIONS)
                except UdoError as e:
                    if not e.retry:
                        raise
                    return False
                return True

            self._ask(job, nodes[partition], wait_s=60)
            wait_until(succeeded, _TRIED_S, f"epoch {self._epoch} to succeed in partition {partition}")
            return answers

        with ThreadPoolExecutor(PARTITIONS) as pool:
            for partition, answers in enumerate(pool.map(task, range(PARTITIONS))):
                wanted = [n for a, n in zip(places, expected, strict=True) if self.job.partition_of(a, PARTITIONS) == partition]
                assert [b % 1000 for b in answers] == wanted, f"epoch {self._epoch}, partition {partition}"
                assert {b // 1000 for b in answers} <= {self.version, self.version - 1}
        assert not strikes

    @property
    def keys(self) -> set[int]:
        """The keys of all events so far."""
        return set(self.counts)

    def restart(self) -> None:
        """Restart the query."""
        for job in self._jobs:
            job.restart()

    def run_again(self) -> None:
        """Restart the query from the same DataFrame: another run of its plan."""
        for job in self._jobs:
            job.run += "+"

    def without_store(self) -> None:
        """Restart the query without its store."""
        self.restart()
        for job in self._jobs:
            job.store = None

    def dies(self, node: str, ended: list[int], strike: Callable[[], None]) -> None:
        """Run the next epoch: an attempt dies once these slots have answered its END, then `strike` is called, then the task runs again."""
        batches, expected = self.drawn()
        self._ask(self.job, node, wait_s=60)
        self.job.dies(self._epoch, batches, ended)
        strike()
        assert [b % 1000 for b in self.job.epoch(self._epoch, batches)] == expected, f"epoch {self._epoch}"

    def _ask(self, job: Job, node: str, wait_s: float) -> None:
        job.node, job.wait_s = self._cluster.address(node), wait_s

    def drawn(self) -> tuple[list[list[int]], list[int]]:
        """Draw the events of the next epoch; return them, and the counts to be answered."""
        self._epoch += 1
        batches = [[self.orders.randrange(300) for _ in range(100)] for _ in range(3)]
        expected = []
        for a in (a for batch in batches for a in batch):
            self.counts[a] += 1
            expected.append(self.counts[a])
        return batches, expected


def _struck(batches: list[list[int]], strikes: list[Callable[[], None]]) -> Iterator[list[int]]:
    for at, batch in enumerate(batches):
        yield batch
        if at == 0 and strikes:
            strikes.pop()()
