"""The two kinds of query under chaos: one whose answers follow from its events, one that rolls dice and looks at the clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.operators.chain.chain import Chain
from benchmarks.operators.history.history import History

ANSWERS = pa.schema([("k", pa.string()), ("id", pa.int64()), ("what", pa.string()), ("n", pa.int64())])
LINKS = pa.schema([*ANSWERS, *(pa.field(name, pa.int64()) for name in ("before", "drawn", "at"))])
# The state of a key: values by name.
State = dict[str, Any]
# Fields of a manifest, by name.
Fields = Mapping[str, Any]
# The version that is only tried and never serves: its answers differ.
OTHERWISE = "7"


@dataclass(frozen=True, eq=False)
class Kind:
    """An operator of benchmarks/operators in two forms of state. `plain` reads a key's state in either form.

    A `chained` one has commit = "frame": the oracle does not know `drawn` and `at` in its answers and its state. `otherwise`: the entry
    of a version that reads both forms and answers each event with one more row, if there is one. `elsewhere`: by version, manifest fields
    that make it run outside its engine's process; `program` is copied into the folders of those with a command.
    """

    operator: str
    answers: pa.Schema
    make: Callable[[], Any]
    other: str  # entry of the versions with the other form of state
    back: str  # entry of the versions that migrate back from it
    plain: Callable[[State], State]
    chained: bool = False
    otherwise: str = ""
    elsewhere: Mapping[str, Fields] = field(default_factory=dict)
    program: Path | None = None

    @property
    def versions(self) -> dict[str, Fields]:
        """By version, the manifest fields that differ from operator.toml: two equal ones, two of another form, two that migrate back, and
        perhaps OTHERWISE."""
        return {version: {**more, **self.elsewhere.get(version, {})} for version, more in self._forms.items()}

    @property
    def _forms(self) -> dict[str, Fields]:
        other = {"entry": self.other, "state_version": 1, "migrates_from": (0,)}
        back = {"entry": self.back, "migrates_from": (1,)}
        tried = {OTHERWISE: {"entry": self.otherwise, "migrates_from": (1,)}} if self.otherwise else {}
        return {"1": {}, "2": {}, "3": other, "4": back, "5": other, "6": back, **tried}


def _unwrapped(state: State) -> State:
    inside: State = state.get("in", state)
    return inside


def _unpacked(state: State) -> State:
    return dict(zip(("n", "drawn", "at"), state["link"], strict=True)) if "link" in state else state


HISTORY = Kind("history", ANSWERS, History, "history:Wrapped", "history:Unwrapped", _unwrapped, otherwise="history:OneMore")
CHAIN = Kind("chain", LINKS, Chain, "chain:Packed", "chain:Unpacked", _unpacked, chained=True)
KINDS = {k.operator: k for k in (HISTORY, CHAIN)}
