"""Makes a Processor from its program: Python code in this process, or a command in a process of its own."""

from __future__ import annotations

import pyarrow as pa

from udo_protocol.assignment import Program
from udo_protocol.formats.state_types import StateTypes
from udo_runtime.execution import load as python
from udo_runtime.execution.load import Processor
from udo_runtime.sdk.api import Context


def load(program: Program, schemas: tuple[pa.Schema, pa.Schema], ctx: Context) -> Processor:
    """Load the operator. OperatorError with the traceback if that fails."""
    types = StateTypes.of(program.state_types)
    if not program.command:
        processor = python.load(program.entry, program.path, schemas[1], ctx, types)
        if not program.keyed:
            processor.require_stateless()
        return processor
    from udo_runtime.child.process import Launch  # imported only here, at no cost to other operators
    from udo_runtime.child.processor import ChildProcessor

    given = {**program.env, **program.secrets}  # for the operator, not for the engine
    return ChildProcessor(Launch.of(program.command, given), schemas, program.keyed, ctx, types)
