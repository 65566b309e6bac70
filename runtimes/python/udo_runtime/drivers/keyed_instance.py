"""Builds a keyed operator's instance from its assignment: owner, standby that becomes owner, or mirror."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from typing import Any

from udo_protocol.assignment import Assignment, MirrorRole, StandbyRole, StateSource
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.slot import report_ready
from udo_protocol.state import changelog
from udo_protocol.state.checkpoints import OwnedState
from udo_protocol.state.dead_letters import DEAD_LETTER
from udo_runtime.drivers.keyed_mirror import KeyedComparer
from udo_runtime.drivers.keyed_owner import KeyedOwner
from udo_runtime.drivers.link import Link
from udo_runtime.drivers.mirror import Mirror
from udo_runtime.drivers.owner import serve
from udo_runtime.drivers.perform import Performer
from udo_runtime.drivers.standby import Standby
from udo_runtime.drivers.stateless_instance import replies_of
from udo_runtime.durable.ledger import Ledger
from udo_runtime.durable.sessions import Durable
from udo_runtime.engine.comparison import Comparison
from udo_runtime.engine.keyed_engine import Engine
from udo_runtime.engine.letters import KeyedLetters
from udo_runtime.execution.keyed_bad_events import Policy
from udo_runtime.execution.keyed_processor import KeyedConfig
from udo_runtime.execution.load import Processor
from udo_runtime.sdk.api import Context
from udo_runtime.state.versions import Versions


class KeyedInstance:
    """A keyed operator's instance; `keyed`: the part of its program that says how it is keyed."""

    def __init__(self, link: Link, a: Assignment, keyed: Mapping[str, Any], processor: Processor, ctx: Context) -> None:
        self.link, self._a, self._schemas = link, a, (a.input, a.output)
        config = KeyedConfig.of(keyed)
        run = processor.keyed(config)
        run.policy = Policy(a.policy == DEAD_LETTER, link.limits.retries, link.counters.retried)
        one, many = processor.per_event.migrate, processor.migrate_all
        versions = Versions(config.state_version, config.migrates_from, one, many, processor.layout, processor.types)
        connect = partial(Connection, a.place.state_socket, login=link.conn.login)
        state = connect()
        mirror = a.role if isinstance(a.role, MirrorRole) else None
        self._durable = Durable(OwnedState(state, link.keys, a.place.token), link.conn.run_id, versions)
        self._replies = replies_of(link, ctx, a.output)
        self._perform = Performer(link, a.input)
        letters = KeyedLetters(link.keys.deployment, link.limits, time.time, mirror=mirror is not None)
        groups = mirror.groups if mirror else None
        engine = Engine(run, self._schemas, self._replies, letters, link.counters, groups, a.place.token)
        self._owner = KeyedOwner(link, engine, self._perform, self._durable, Ledger(state, link.keys), connect)

    def serve(self) -> None:
        """See main.Assigned."""
        link, role, owner = self.link, self._a.role, self._owner
        reference, report = self._replies.reference, partial(report_ready, link.conn, link.keys, link.name)
        if isinstance(role, MirrorRole):
            comparison = Comparison(reference, role.examples)
            state = self._durable.standby(link.name, groups=role.groups)
            comparer = KeyedComparer(link, owner, self._perform, state, comparison, self._schemas)
            mirror = Mirror(link, comparer, comparison, reference)
            comparer.renew = mirror.renew
            mirror.run(lambda: comparer.load(report))
            return
        with link.leaving(self._leave if isinstance(role, StandbyRole) else lambda _: None):
            if isinstance(role, StandbyRole):
                state = self._durable.standby(link.name, rewind=role.source == StateSource.KEPT)
                cursor = Standby(link, owner, self._perform, state, report, reference).await_promotion()
            else:
                cursor = owner.begin(link.await_promotion())
            serve(link, owner, cursor)

    def _leave(self, _: Connection) -> None:
        """Leave the changelog, so that no entries are kept for the ended standby."""
        with closing(Connection(self._a.place.state_socket, login=self.link.conn.login)) as state:
            state.call(*changelog.leaving(self.link.keys, self.link.name))
