"""The list of cases, which the modules beside this one fill."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from udo_cli.conformance.player import Player


class Open(Protocol):
    """open(role, ...) -> a started process in that role, which is ended after the `with`."""

    def __call__(
        self, role: str, schemas: tuple[pa.Schema, pa.Schema] | None = None, keyed: dict[str, Any] | None = None, **env: str
    ) -> AbstractContextManager[Player]:
        """`schemas` None: the handshake is left to the case."""
        ...


@dataclass(frozen=True)
class Case:
    """A part of the protocol, the behaviour that is expected, and the function that tests it."""

    part: str
    title: str
    run: Callable[[Open], None]


CASES: list[Case] = []


def case(part: str, title: str) -> Callable[[Callable[[Open], None]], Callable[[Open], None]]:
    """Decorator: register the function as a case."""

    def enter(run: Callable[[Open], None]) -> Callable[[Open], None]:
        CASES.append(Case(part, title, run))
        return run

    return enter
