"""The data that a slot adopts in a move of key groups: the groups, and the former slot's records of their sessions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from udo_protocol.state.session_record import SessionRecord
from udo_runtime.state.groups import Group

# The session's record in the former slot, and the groups.
AdoptedSession: TypeAlias = "tuple[SessionRecord, Mapping[int, Group]]"


@dataclass(frozen=True)
class Adopted:
    """The adopted data by session; `letters`: bytes of each dead letter, by hash and name."""

    sessions: Mapping[str, AdoptedSession] = field(default_factory=dict)
    letters: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
