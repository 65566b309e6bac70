"""The error of an invalid run, and the sequence and equality oracles that raise it. Pure: arrays and tables in, verdicts out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa


class InvalidRun(Exception):
    """The run's figures are meaningless: a mismatch, a lost event, a peer that did not start. Never raised because a figure is low."""


@dataclass(frozen=True)
class Sequence:
    """The numbers of events 0 .. n-1 that were lost, duplicated, or reordered."""

    lost: int
    duplicated: int
    reordered: int

    def require_clean(self, what: str) -> None:
        """InvalidRun unless every event came exactly once and in order."""
        if self.lost or self.duplicated or self.reordered:
            raise InvalidRun(f"{what}: {self.lost} events lost, {self.duplicated} duplicated, {self.reordered} reordered")


def check_sequence(ids: npt.NDArray[np.int64], sent: int) -> Sequence:
    """Compare ids in order of arrival with 0 .. sent-1, each expected once and in rising order.

    `reordered` counts first arrivals of an id after a higher one; an id that was never sent raises InvalidRun.
    """
    if len(ids) and (ids.min() < 0 or ids.max() >= sent):
        raise InvalidRun(f"an event came back that was never sent: ids {ids.min()} to {ids.max()}, sent were 0 to {sent - 1}")
    counts = np.bincount(ids, minlength=sent)
    _, first = np.unique(ids, return_index=True)
    once = ids[np.sort(first)]  # each id at its first arrival
    highest = np.maximum.accumulate(once)
    return Sequence(int((counts == 0).sum()), int((counts[counts > 1] - 1).sum()), int((once < highest).sum()))


def require_equal(outputs: Mapping[str, pa.Table], oracle: pa.Table) -> None:
    """InvalidRun unless all outputs equal the oracle, order included; it names the first contender and row that differ."""
    for name, table in outputs.items():
        if table.column_names != oracle.column_names or table.schema.types != oracle.schema.types:
            raise InvalidRun(f"{name} answers with columns {table.schema.to_string()}, expected {oracle.schema.to_string()}")
        if table.num_rows != oracle.num_rows:
            raise InvalidRun(f"{name} answers with {table.num_rows} rows, expected {oracle.num_rows}")
        for column in oracle.column_names:
            have, want = table[column].combine_chunks(), oracle[column].combine_chunks()
            if not have.equals(want):
                row = next(i for i in range(len(want)) if have[i] != want[i])
                raise InvalidRun(f"{name} differs in row {row}, column {column!r}: got {have[row]}, expected {want[row]}")
