"""An update whose rollback data are kept, and the keys of these data."""

from __future__ import annotations

from tests.conftest import Servers
from tests.runtime.conftest import P, Process
from udo_protocol.queue import slot
from udo_protocol.state import rewinding


def update(servers: Servers, follower: Process, window_ms: int = 60_000) -> None:
    state, queue = servers.state(), servers.queue()
    slot.promote(state, queue, P, follower.token, lambda: rewinding.keep(state, queue, P, "former", 0, window_ms))


def kept_keys(servers: Servers) -> list[bytes]:
    return servers.state().call("KEYS", f"{P}savepoint*") + servers.queue().call("HKEYS", f"{P}pins")
