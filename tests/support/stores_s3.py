"""A state store at an S3 endpoint."""

from __future__ import annotations

from tests.support.stores import KEY
from udo_interface.store.store import SessionStore, StoreLocation
from udo_interface.store.store_place import located


def store(location: str) -> SessionStore:
    return SessionStore(StoreLocation(located(location), KEY), "count", "query/1")
