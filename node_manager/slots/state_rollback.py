"""A slot's part in a promotion that changes the state version: it keeps the state from before, or goes back to it."""

from __future__ import annotations

import time
from collections.abc import Callable

from node_manager.instances.instances import Instance
from node_manager.slots.loading import Wanted, log_end
from udo_protocol.assignment import StateSource
from udo_protocol.errors import Conflict
from udo_protocol.queue.connection import Connection
from udo_protocol.queue.keys import SlotKeys
from udo_protocol.state import rewinding

_REWOUND_S, _LOOK_S = 20.0, 0.002


def step(
    state: Connection, queue: Connection, keys: SlotKeys, instance: Instance, wanted: Wanted, former: Wanted | None, window_s: float
) -> Callable[[], None]:
    """The step between the two halves of the promotion of `instance`. Conflict if it is too late to roll back."""
    new, old = wanted.image.manifest, former.image.manifest if former else None
    if old is None or former is None or not new.key or new.state_version == old.state_version:
        return _nothing
    if instance.assigned.follow == StateSource.KEPT:
        if rewinding.kept(state, keys) is None:
            raise Conflict(f"{new.reference} cannot be rolled back to any more: the state from before the update has just been deleted")
        return lambda: await_rewound(state, keys, instance)
    if old.commit == "frame":  # processed again, a frame would be answered differently
        return _nothing
    digest, until = former.image.digest, time.time() + window_s
    return lambda: rewinding.keep(state, queue, keys, digest, until, round(window_s * 1000))


def await_rewound(state: Connection, keys: SlotKeys, instance: Instance) -> None:
    """Wait for the instance's first checkpoint, which makes the kept state, with the input since then, the present one. Only then may it
    get the log, which has that input: if the queue server were lost earlier, this version could not be restored, and the newer one would
    be gone. Conflict if it takes too long, or the instance ends."""
    deadline = time.monotonic() + _REWOUND_S
    while rewinding.kept(state, keys) is not None:
        late = time.monotonic() > deadline
        if instance.exited.wait(_LOOK_S) or late:
            why = f"took longer than {_REWOUND_S:g} s" if late else f"ended: {instance.exit}{log_end(instance)}"
            raise Conflict(f"{instance.assigned.reference} was not promoted: restoring the state from before the update {why}")


def _nothing() -> None:
    pass


def remaining_s(state: Connection, keys: SlotKeys, owner: Instance) -> float | None:
    """Seconds for which the kept state is still kept; None if none is, or if the owner goes back to it: its first checkpoint ends it."""
    found = rewinding.kept(state, keys)
    if found is None:
        return None
    if found.digest == owner.assigned.digest:
        return None if owner.assigned.follow == StateSource.KEPT else 0.0  # kept for an update that did not get further
    return max(0.0, found.until - time.time())
