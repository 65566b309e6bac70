"""Operators called by name: from Spark (`udo`), in its SQL (`register`), and from any Python program (`connect`, which needs no Spark).

from udo_interface import udo, connect
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from udo_interface.client import Client, connect
    from udo_interface.spark.call import DeployedOperator, udo
    from udo_interface.spark.sql import register

__all__ = ["Client", "DeployedOperator", "connect", "register", "udo"]
_HOMES = {"udo": "spark.call", "DeployedOperator": "spark.call", "connect": "client", "Client": "client", "register": "spark.sql"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
