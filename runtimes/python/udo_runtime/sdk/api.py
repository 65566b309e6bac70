"""The API for authors of operators: one decorator, one base class, one context. No I/O."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from udo_runtime.sdk.frame_keys import FrameKeys, FrameStates

Batches: TypeAlias = "pa.RecordBatch | pa.Table | dict[str, Any] | None"
F = TypeVar("F", bound=Callable[[pa.RecordBatch], Batches])


# Further attributes of a keyed operator's context.
_OF_KEYED = ("key", "state", "timer", "expire", "watermark")


@dataclass(frozen=True)
class Context:
    """Information from the platform for an operator; environment values and secrets are in os.environ."""

    operator: str
    version: str
    instance: str = "local"
    # The instance's private directory, which contains the files given at deployment.
    directory: Path = field(default_factory=Path.cwd)

    @property
    def log(self) -> logging.Logger:
        """A logger whose lines reach `udo logs`."""
        return logging.getLogger(self.operator)

    def __getattr__(self, name: str) -> Any:
        if type(self) is Context and name in _OF_KEYED:
            raise AttributeError(
                f"ctx.{name} is for operators that keep state by key, and operator.toml names no key: "
                'add key = ["COLUMN", ...], the columns that make it up'
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def operator(function: F) -> F:
    """Mark a function as a vectorised operator: one record batch of the input schema in, one answer out.

    The answer is a RecordBatch, a Table or a dict of columns with the manifest's output columns, of any number of rows;
    None means no rows.
    """
    return function


class Operator:
    """Base class of operators that hold resources or work event by event.

    Override `process` (per event) or `process_batch` (vectorised), not both; for a keyed operator `process` or `process_keys` (vectorised).
    """

    def open(self, ctx: Context) -> None:
        """Called once per instance before the first event: load the model here."""

    def process(self, event: dict[str, Any], ctx: Context) -> Iterable[dict[str, Any]] | None:
        """Answer one event with any number of events; called for the events in order."""
        raise TypeError(f"{type(self).__name__} overrides neither process nor process_batch, and process_keys is for keyed operators")

    def on_timer(self, key: Any, at: datetime, ctx: Context) -> Iterable[dict[str, Any]] | None:
        """Keyed operators: a timer set with `ctx.timer` is due; answer with any number of events."""
        return None

    def migrate(self, old: dict[str, Any], from_version: int) -> dict[str, Any]:
        """Keyed operators: convert one key's state, left by a version with another `state_version`, to this version's form.

        Called for the versions that the manifest lists in `migrates_from`, before the update and for states that are read later;
        the same state may come more than once.
        """
        raise TypeError(f"{type(self).__name__} does not override migrate")

    def process_batch(self, batch: pa.RecordBatch, ctx: Context) -> Batches:
        """Answer one record batch of the input schema, like an `@operator` function."""
        raise TypeError(f"{type(self).__name__} does not override process_batch")

    def process_keys(self, keys: FrameKeys, events: pa.RecordBatch, states: FrameStates, ctx: Context) -> Batches:
        """Keyed operators: answer one record batch of the input schema, with the keys that its events touch, and their states.

        May be called with parts of a frame, in order, to find the events that it fails on. `ctx` has a watermark, but no key and no state.
        """
        raise TypeError(f"{type(self).__name__} does not override process_keys")

    def close(self) -> None:
        """Called once when the instance stops in an orderly way."""
