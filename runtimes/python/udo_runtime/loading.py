"""Makes a Processor from an assignment: Python code in this process, or a command in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from udo_protocol.formats.state_types import StateTypes
from udo_runtime.execution import load as python
from udo_runtime.execution.load import Processor
from udo_runtime.sdk.api import Context


def load(a: Mapping[str, Any], schemas: tuple[pa.Schema, pa.Schema], ctx: Context) -> Processor:
    """The operator that `a` names, an assignment or its equivalent from `udo test`. OperatorError with the traceback if loading fails."""
    types = StateTypes.of(a.get("state_types"))
    if not (command := a.get("command")):
        processor = python.load(a["entry"], a["path"], schemas[1], ctx, types)
        if not a.get("keyed"):
            processor.require_stateless()
        return processor
    from udo_runtime.child.process import Launch  # imported only here, at no cost to other operators
    from udo_runtime.child.processor import ChildProcessor

    given = {**a.get("env", {}), **a.get("secrets", {})}  # for the operator, not for the engine
    return ChildProcessor(Launch.of(command, given), schemas, a.get("keyed"), ctx, types)
