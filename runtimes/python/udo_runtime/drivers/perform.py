"""Performs the effects that every engine requests: user code, schemas, the sender of a frame, and whether its lane is still open."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from udo_protocol.formats.schema import schema_id, to_ipc
from udo_protocol.queue.slot import stored_schema
from udo_runtime import children
from udo_runtime.drivers.link import Link
from udo_runtime.engine.effects import Effect, Execute, FindSchema, FindSender, LaneOpen

Perform = Callable[[Effect], Any]
# A lane is checked again after this much time in user code: no frame waits longer than this, plus the frame under way, for frames of a
# closed lane; and if frames are quick, the check costs nothing compared with them.
_LOOK_WORKED_S = 0.1
# Number of lanes remembered; beyond it, each is checked once more.
_MOST_LANES = 1000


class Performer:
    """Performs the effects of one instance's engine. `on` adds kinds of effects; `settle` is called before the connection is used."""

    def __init__(self, link: Link, schema: pa.Schema) -> None:
        self._link = link
        self._schemas: dict[bytes, pa.Schema] = {schema_id(to_ipc(schema)): schema}
        self.settle: Callable[[], None] = lambda: None
        self.counting = True  # whether executions are counted
        self._worked_s = 0.0  # time in user code so far
        self._seen_open: dict[str, float] = {}  # lane -> _worked_s when it was last seen open
        self._does: dict[type, Callable[[Any], Any]] = {
            Execute: self._execute,
            FindSchema: self._find,
            FindSender: self._sender,
            LaneOpen: self._open,
        }

    def on(self, kind: type, does: Callable[[Any], Any]) -> None:
        """Perform effects of this kind with `does`."""
        self._does[kind] = does

    def __call__(self, effect: Effect) -> Any:
        return self._does[type(effect)](effect)

    def _execute(self, effect: Execute) -> Any:
        started = time.perf_counter()
        try:
            result = effect.work()
            children.end_if_forked()
        finally:
            took_s = time.perf_counter() - started
            self._worked_s += took_s
        if effect.rows is not None and self.counting:
            answer = result[0] if isinstance(result, tuple) else result
            self._link.counters.record(effect.rows, 0 if answer is None else answer.num_rows, took_s)
        return result

    def _find(self, effect: FindSchema) -> pa.Schema:
        return self.schema(effect.identity)

    def schema(self, identity: bytes) -> pa.Schema:
        """The schema registered under that id."""
        found = self._schemas.get(identity)
        if found is None:
            self.settle()
            found = self._schemas[identity] = stored_schema(self._link.conn, self._link.keys, identity)
        return found

    def _open(self, effect: LaneOpen) -> bool:
        if self._worked_s - self._seen_open.get(effect.lane, -_LOOK_WORKED_S) < _LOOK_WORKED_S:
            return True
        self.settle()
        if not self._link.conn.call("EXISTS", self._link.keys.lane(effect.lane)):
            return False
        if len(self._seen_open) >= _MOST_LANES:
            self._seen_open.clear()
        self._seen_open[effect.lane] = self._worked_s
        return True

    def _sender(self, effect: FindSender) -> tuple[str, int]:
        self.settle()
        return self._link.reader.sender(effect.seq)
