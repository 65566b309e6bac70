"""A running count per key in a streaming query: through UDO, and with Spark's two stateful operators in Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import LongType, StructField, StructType

from udo_interface import udo
from udo_interface.spark.deployed import fetch
from udo_interface.spark.keyed_plan import repartitioned

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import TimerValues

COUNTED = StructType([StructField(n, LongType()) for n in ("id", "card", "n")])
_COUNT = StructType([StructField("n", LongType())])
Call = Callable[[DataFrame], DataFrame]


class Counter(StatefulProcessor):  # type: ignore[misc]
    """The processor for transformWithState, one Row at a time."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Get the state: one value per key."""
        self._count = handle.getValueState("count", _COUNT)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:  # noqa: N802, N803
        """Number the key's events of this micro-batch."""
        n = self._count.get()[0] if self._count.exists() else 0
        for row in rows:
            n += 1
            yield Row(id=row["id"], card=key[0], n=n)
        self._count.update((n,))

    def close(self) -> None:
        """Do nothing: nothing is held."""


def _in_pandas(key: tuple[int], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    n = state.get[0] if state.exists else 0
    for frame in frames:
        yield pd.DataFrame({"id": frame["id"], "card": key[0], "n": range(n + 1, n + 1 + len(frame))})
        n += len(frame)
    state.update((n,))


def transform_with_state(df: DataFrame) -> DataFrame:
    """Count with Spark's newer operator; its state store is RocksDB."""
    return df.groupBy("card").transformWithState(Counter(), COUNTED, "Append", "None")


def apply_in_pandas_with_state(df: DataFrame) -> DataFrame:
    """Count with Spark's older operator, on pandas frames per key."""
    return df.groupBy("card").applyInPandasWithState(_in_pandas, COUNTED, _COUNT, "Append", GroupStateTimeout.NoTimeout)


def keyed(df: DataFrame, registry: str, name: str = "count", path: Literal["python", "jvm"] = "python") -> DataFrame:
    """Call `udo("count", key="card")(df)` on this path, nothing else."""
    return udo(name, key="card", registry=registry, path=path)(df)


def stateless(df: DataFrame, registry: str) -> DataFrame:
    """Call the stateless operator after the same repartition."""
    return udo("each", registry=registry, path="python")(repartitioned(df, ["card"], fetch("each", registry).input))
