"""Loads a Python operator by its entry point and serves it; one that cannot be loaded says so in the reply to Start."""

from __future__ import annotations

import gc
import io
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from udo_runtime.execution.failure import ProcessingError
from udo_runtime.execution.load import find
from udo_runtime.sdk.api import Context, Operator
from udo_runtime.served.serve import serve


def main(entry: str, operator: str, version: str) -> None:
    """Until the engine stops it or is gone."""
    for stream in (sys.stdout, sys.stderr):  # a line that is finished is not held back
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    target: Operator | Callable[[pa.RecordBatch], Any] | ProcessingError
    try:
        target = find(entry, [], Context(operator, version))
    except ProcessingError as e:
        target = e
    gc.collect()
    gc.freeze()  # what is loaded now stays: later collections need not look at it
    serve(target)
