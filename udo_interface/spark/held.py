"""Holds the answers of a keyed attempt at a micro-batch until the attempt is complete, so that no limit downstream cuts it short.

Spark stops reading a task's answers as soon as a limit has enough of them, and goes on to the next micro-batch. How far the operator
had got by then would depend on the sizes of buffers on the way; with the same data, a key's state would include events in one run and
not in another. An attempt that is complete before its first answer is seen counts whole.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator

import pyarrow as pa

# Bytes held in memory: no more than a task's window of frames may take (limits.py); the rest waits in an unnamed file.
HELD_BYTES = 64 << 20


def held(answers: Iterator[pa.RecordBatch], bound: int = HELD_BYTES) -> Iterator[pa.RecordBatch]:
    """Yield the same batches in the same order, the first one once the last has come."""
    kept: list[pa.RecordBatch] = []
    size = spilled = 0
    with tempfile.TemporaryFile(prefix="udo-held-") as file:
        for answer in answers:
            size += answer.nbytes
            if size <= bound:
                kept.append(answer)
            else:
                pickle.dump(answer, file, protocol=pickle.HIGHEST_PROTOCOL)
                spilled += 1
        yield from kept
        file.seek(0)
        for _ in range(spilled):
            yield pickle.load(file)
