"""The list of cases, which the modules beside this one fill."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from udo_cli.conformance.player import Player


class Open(Protocol):
    """open(role, ...) -> a started process in that role, which is ended behind the `with`."""

    def __call__(
        self, role: str, schemas: tuple[pa.Schema, pa.Schema] | None = None, keyed: dict[str, Any] | None = None, **env: str
    ) -> AbstractContextManager[Player]:
        """`schemas` None: not yet greeted."""
        ...


@dataclass(frozen=True)
class Case:
    """A part of the protocol, what is to be seen, and what tries it."""

    part: str
    title: str
    run: Callable[[Open], None]


CASES: list[Case] = []


def case(part: str, title: str) -> Callable[[Callable[[Open], None]], Callable[[Open], None]]:
    """Enter a case."""

    def enter(run: Callable[[Open], None]) -> Callable[[Open], None]:
        CASES.append(Case(part, title, run))
        return run

    return enter
