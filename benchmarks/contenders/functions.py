"""The functions every contender calls: those of the pushed operators themselves, by name."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from benchmarks.operators.forward.forward import forward
from benchmarks.operators.keep.keep import keep

FUNCTIONS: dict[str, Callable[[pa.RecordBatch], pa.RecordBatch]] = {"filter": keep, "forward": forward}
# Batches under way before the first answer is awaited: the default of a deployment (udo_protocol.limits.window_frames).
WINDOW = 8
