"""Builds a stateless operator's instance from its assignment: owner, or mirror."""

from __future__ import annotations

from typing import TypeAlias

import pyarrow as pa

from udo_protocol.assignment import Assignment, MirrorRole
from udo_protocol.formats.schema import to_ipc
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.slot import store_schema
from udo_protocol.state.checkpoints import OwnedState
from udo_protocol.state.dead_letters import DEAD_LETTER
from udo_runtime.drivers.link import Link
from udo_runtime.drivers.owner import serve
from udo_runtime.drivers.perform import Performer
from udo_runtime.drivers.stateless_owner import StatelessOwner
from udo_runtime.durable.letters import StatelessLetters
from udo_runtime.engine.replies import Replies
from udo_runtime.engine.stateless_engine import StatelessEngine
from udo_runtime.execution.load import Processor
from udo_runtime.sdk.api import Context

# Input, output.
Schemas: TypeAlias = "tuple[pa.Schema, pa.Schema]"


class StatelessInstance:
    """A stateless operator's instance."""

    def __init__(self, link: Link, a: Assignment, processor: Processor, ctx: Context) -> None:
        self.link, self._a, self._processor = link, a, processor
        self._replies = replies_of(link, ctx, a.output)
        self._perform = Performer(link, a.input)

    def serve(self) -> None:
        """See main.Assigned."""
        link, a = self.link, self._a
        if isinstance(a.role, MirrorRole):
            # Imported only here: comparing needs Arrow's compute functions, and each cold start would wait for their import.
            from udo_runtime.drivers.mirror import Mirror, StatelessComparer
            from udo_runtime.engine.comparison import Comparison

            comparison = Comparison(self._replies.reference, a.role.examples)
            comparer = StatelessComparer(self._processor, a.input, self._perform, comparison)
            Mirror(link, comparer, comparison, self._replies.reference).run()
            return
        letters = None
        if a.policy == DEAD_LETTER:
            state = Connection(a.place.state_socket, login=link.conn.login)
            letters = StatelessLetters(OwnedState(state, link.keys, a.place.token), link.conn.run_id, link.limits)
        engine = StatelessEngine(self._processor, a.input, self._replies, a.policy, link.keys.deployment, link.limits, link.counters)
        owner = StatelessOwner(link, engine, self._perform, self._replies, letters)
        with link.leaving():
            serve(link, owner, owner.begin(link.await_promotion()))
            owner.settle()


def replies_of(link: Link, ctx: Context, output: pa.Schema) -> Replies:
    """The maker of this instance's replies; registers the schema of its answers."""
    return Replies(f"{ctx.operator}@{ctx.version}", link.name, store_schema(link.conn, link.keys, to_ipc(output)), link.limits.answer_bytes)
