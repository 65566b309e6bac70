"""Loads a Python operator by its entry point and serves it; a failure to load is reported in the reply to Start."""

from __future__ import annotations

import gc
import io
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from udo_runtime import absent
from udo_runtime.execution.load import find
from udo_runtime.failure import ProcessingError
from udo_runtime.sdk.api import Context, Operator
from udo_runtime.served.serve import serve


def main(entry: str, operator: str, version: str) -> None:
    """Load and serve the operator until the engine stops it or is gone."""
    for stream in (sys.stdout, sys.stderr):  # do not hold finished lines back
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    absent.remember()
    target: Operator | Callable[[pa.RecordBatch], Any] | ProcessingError
    try:
        target = find(entry, [], Context(operator, version))
    except ProcessingError as e:
        target = e
    gc.collect()
    gc.freeze()  # loaded objects stay: later collections need not scan them
    serve(target)
