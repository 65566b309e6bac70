"""The load of every key group over the last samples: the input of the correlations."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from udo_protocol.errors import UsageError

Floats = npt.NDArray[np.floating]
Ints = npt.NDArray[np.integer]
Flags = npt.NDArray[np.bool_]


class LoadHistory:
    """A ring of samples, key groups × samples. Each sample updates the means; correlations are computed on demand (values.py)."""

    def __init__(self, groups: int, samples: int) -> None:
        if groups < 1 or samples < 2:
            raise UsageError(f"a load history needs at least 1 key group and 2 samples; got {groups} groups and {samples} samples")
        self._ring = np.zeros((groups, samples), np.float32)
        self._total = np.zeros(groups)
        self._count = 0

    def add(self, loads: Floats) -> None:
        """Add one sample: the load of every group, always in the same unit. Once the ring is full, the oldest sample is dropped."""
        groups, size = self._ring.shape
        if loads.shape != (groups,) or not np.isfinite(loads).all():
            raise UsageError(f"expected finite loads of {groups} key groups, got {loads.size} values: leave a sample out if it is unknown")
        column = self._count % size
        self._total -= self._ring[:, column]
        self._ring[:, column] = loads
        self._total += self._ring[:, column]
        self._count += 1
        if column == size - 1:
            self._total = self._ring.sum(axis=1, dtype=np.float64)  # keeps rounding errors from adding up over years

    def mean(self) -> Floats:
        """Mean load per group over the samples held; zero before the first."""
        return self._total / max(1, len(self))

    def samples(self) -> Floats:
        """Groups × samples, in no particular order in time: a view, valid until the next sample."""
        return self._ring[:, : len(self)]

    def __len__(self) -> int:
        return min(self._count, self._ring.shape[1])
