"""A Processor for an operator in a process of its own: stateless frames; keyed_frames.py has the keyed ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from udo_protocol.errors import ProtocolError
from udo_protocol.formats.state_types import StateTypes
from udo_protocol.proto import operator_pb2 as pb
from udo_runtime.child.host import Child, Failed, Lost, needs, start_message
from udo_runtime.child.process import Launch
from udo_runtime.counters import Counters, ProcessLife
from udo_runtime.execution.bad_events import BadEvent
from udo_runtime.execution.gathered import empty
from udo_runtime.execution.load import Processor
from udo_runtime.failure import ProcessingError
from udo_runtime.sdk.api import Context, Operator

if TYPE_CHECKING:
    from udo_runtime.execution.keyed_processor import KeyedConfig, KeyedProcessor
    from udo_runtime.state.versions import MigrateAll


class ChildProcessor(Processor):
    """A Processor that passes frames to the operator's process."""

    def __init__(
        self,
        launch: Launch,
        schemas: tuple[pa.Schema, pa.Schema],
        keyed: Mapping[str, Any] | None,
        ctx: Context,
        types: StateTypes | None = None,
    ) -> None:
        super().__init__(self._whole, schemas[1], ctx)
        self._types = types
        self._input, self._rehearse, self._key_columns = schemas[0], launch.rehearse, list(keyed["columns"]) if keyed else []
        self._is_keyed, rehearses = bool(keyed), bool(launch.rehearse)
        start = start_message(schemas, keyed, ctx, rehearses=rehearses)
        self._child = Child(launch, start, needs(keyed, rehearses=rehearses), ctx)

    @property
    def per_event(self) -> Operator:
        """The operator as one that takes single events; ProcessingError if it is not keyed."""
        if not self._is_keyed:
            return super().per_event
        from udo_runtime.child.keyed_frames import ChildOperator  # needs MessagePack, like keyed_processor.py

        return ChildOperator(self._child, self._output, self._types)

    @property
    def migrate_all(self) -> MigrateAll | None:
        """A function that migrates many states at once, since a call for each would be a request for each; None if not keyed."""
        if not self._is_keyed:
            return None
        from udo_runtime.child.keyed_frames import ChildOperator

        return ChildOperator(self._child, self._output, self._types).migrate_all

    def keyed(self, keyed: KeyedConfig) -> KeyedProcessor:
        """The processor of keyed frames."""
        from udo_runtime.child.keyed_frames import ChildKeyedProcessor, ChildOperator

        return ChildKeyedProcessor(ChildOperator(self._child, self._output, self._types), keyed, self._output, self._ctx)

    def check(self) -> None:
        """Check that the process starts, speaks the protocol and has the capabilities that the manifest requires."""
        self._child.open(check=True)
        self._child.close()

    def open(self) -> None:
        """Start the process, and let it rehearse if the manifest names sample events."""
        self._child.open()
        if self._rehearse:
            from udo_runtime.child.rehearsal import Rehearsal, read

            Rehearsal(self._child, read(self._rehearse, self._input), self._output, self._key_columns).run()

    def look_after(self, counters: Counters) -> None:
        """Keep the process running, and update the counters of ended processes; called between frames."""
        self._child.look_after()
        counters.process = ProcessLife(self._child.pid, self._child.ends, self._child.last_end)

    def close(self) -> None:
        """Stop the process."""
        self._child.close()

    def without_bad(self, batch: pa.RecordBatch, error: ProcessingError, room: int) -> tuple[pa.RecordBatch, list[BadEvent]]:
        """As for any operator, except that a batch is not tried event by event if the process hung."""
        if isinstance(error, Lost) and error.final:
            raise error
        return super().without_bad(batch, error, room)

    def name_event(self, error: ProcessingError, batch: pa.RecordBatch) -> None:
        """Do nothing: the process names the event or it stays unknown. Halving the batch would end one process after another."""

    def _whole(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            reply = self._child.ask(pb.Message(data=pb.Data()), [(pb.Part.EVENTS, batch)])
        except Failed as e:
            e.name_event(batch)
            raise
        try:
            if (kind := reply.message.WhichOneof("kind")) != "answer":
                raise ProtocolError(f"expected an Answer, got {kind}")
            answer = reply.table(pb.Part.ROWS, self._output)
        except ProtocolError as e:
            raise self._child.blame(e) from e
        return empty(self._output) if answer is None else answer
