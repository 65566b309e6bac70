"""From an assignment to a Processor: Python code in this process, or a command in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from udo_protocol.formats.state_types import StateTypes
from udo_runtime.execution import load as python
from udo_runtime.execution.load import Processor
from udo_runtime.sdk.api import Context


def load(a: Mapping[str, Any], schemas: tuple[pa.Schema, pa.Schema], ctx: Context) -> Processor:
    """What `a`, an assignment or the like of `udo test`, names. OperatorError with the traceback if it cannot be loaded."""
    types = StateTypes.of(a.get("state_types"))
    if not (command := a.get("command")):
        processor = python.load(a["entry"], a["path"], schemas[1], ctx, types)
        if not a.get("keyed"):
            processor.require_stateless()
        return processor
    from udo_runtime.child.process import Launch  # Python operators pay nothing for it
    from udo_runtime.child.processor import ChildProcessor

    given = {**a.get("env", {}), **a.get("secrets", {})}  # the operator's, not the engine's
    return ChildProcessor(Launch.of(command, given), schemas, a.get("keyed"), ctx, types)
