"""An update's progress as server-sent events, and the clock that ends updates past their deadline."""

from __future__ import annotations

import itertools
import json
import logging
import time
from collections.abc import Iterator

from flask import Response, request

from registry.domain import deployments, failover, group_maps, history, nodes, updates
from registry.http.web import Services, services
from registry.store import postgresql
from udo_protocol import supervised
from udo_protocol.lifecycle import UPDATE_FINAL

log = logging.getLogger(__name__)
# The longest delay with which an overdue update fails, or a vanished node is noticed.
TICK_S = 0.5
PRUNE_TICKS = 600
# A tick this late means that this process stood still: reports of nodes sent meanwhile are still to be read.
STOOD_STILL_S = 5.0
# Nodes retry a registry that was away within this time.
RETRIED_S = 3.0


def stream(update_id: str) -> Response:
    """The events of an update from its start (or after Last-Event-ID) until it has ended."""
    s = services()
    last = request.headers.get("Last-Event-ID", "0")
    s.hub.enter()
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    response = Response(
        _events(s, update_id, int(last) if last.isdecimal() and len(last) < 19 else 0), mimetype="text/event-stream", headers=headers
    )
    response.call_on_close(s.hub.leave)
    return response


def _events(s: Services, update_id: str, after: int) -> Iterator[str]:
    said = time.monotonic()
    while not s.hub.stopping.is_set():
        seen = s.hub.commits
        with s.store.read() as session:
            fresh = updates.events(session, update_id, after)
        for event in fresh:
            after = event.pop("seq")
            yield f"id: {after}\nevent: {event['phase']}\ndata: {json.dumps(event)}\n\n"
            said = time.monotonic()
            if event["phase"] in UPDATE_FINAL:
                return
        # Commits about other things, such as heartbeats, are no reason to be silent.
        left_s = said + s.config.stream_beat_s - time.monotonic()
        if left_s <= 0 or not s.hub.wait_commit(seen, left_s):
            yield ": still running\n\n"
            said = time.monotonic()


class _Tasks:
    """What a registry without replicas and open updates need not look for, until the wanted state changes."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._no_replicas, self._no_updates = -1, -1  # the generations as of which there was none

    def step_replicas(self) -> None:
        """Carry out what is due for deployments with replicas."""
        s, generation = self._services, self._services.store.generation
        if generation == self._no_replicas:
            return
        with s.store.read() as session:
            if not failover.has_replicas(session):
                self._no_replicas = generation
                return
            if not failover.due(session, s.suspected(session)):
                return
        with s.store.write(durable=True) as session:  # a forgotten version could be given out twice
            failover.step(session, s.clock(), s.suspected(session))

    def end_updates(self) -> None:
        """End overdue updates, and let the others continue without vanished nodes."""
        s, generation = self._services, self._services.store.generation
        if generation == self._no_updates:
            return
        with s.store.read() as session:
            if not history.are_open(session):
                self._no_updates = generation
                return
            if not updates.overdue(session, s.presumed(session).live, s.clock()):
                return
        with s.store.write() as session:
            updates.drop_dead(session, s.presumed(session).live, s.clock())
            updates.expire(session, s.clock())


def keep_time(s: Services) -> None:
    """Until the server stops: fail overdue updates, continue without vanished nodes, forget old data now and then.

    Each of several processes does this; the rules are applied by one writer at a time, to what the others have left.
    """
    tasks, ticked, judges_from = _Tasks(s), time.monotonic(), 0.0
    begun, decides_from = ticked, 0.0
    for tick in itertools.count():
        if s.hub.stopping.wait(TICK_S):
            return
        before, ticked = ticked, time.monotonic()
        if ticked - before > STOOD_STILL_S:
            judges_from = ticked + s.config.node_live_s
        if ticked < judges_from:
            continue
        try:
            if ticked - before > s.config.suspect_s / 2 or ticked < begun + RETRIED_S:
                decides_from = ticked + s.config.suspect_s  # it may have heard from no node because it stood still, or was away
            if ticked >= decides_from:
                tasks.step_replicas()
            if tick % PRUNE_TICKS == 0:
                with s.store.write() as session:
                    updates.prune(session)
                    nodes.forget(session, s.clock() - s.config.node_kept_s)
                    group_maps.forget(session, s.clock() - s.config.node_kept_s)
                    deployments.forget_epochs(session, s.clock() - s.config.node_kept_s)
                s.collect(s.config.unused_kept_s)
            tasks.end_updates()
        except Exception as e:
            if postgresql.is_away(e):
                log.warning("the database is away, no deadline is kept until it is back: %s", type(e).__name__)
            else:
                supervised.failed("update-deadlines")
