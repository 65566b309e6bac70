"""What a slot adopts in a move of key groups: what the slot that had them knew of their sessions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from udo_runtime.state.groups import Group

# The session's record there, and the groups.
AdoptedSession: TypeAlias = "tuple[Mapping[str, Any], Mapping[int, Group]]"


@dataclass(frozen=True)
class Adopted:
    """By session; `letters`: bytes of each dead letter, by hash and name."""

    sessions: Mapping[str, AdoptedSession] = field(default_factory=dict)
    letters: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
