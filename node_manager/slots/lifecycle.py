"""The allowed state changes of a slot: a table, as udo_protocol.lifecycle has them for instances and updates.

docs/design/instances.md draws its state diagram from this table (`python -m node_manager.slots.lifecycle`).
"""

from __future__ import annotations

from collections.abc import Mapping

from udo_protocol.lifecycle import diagram

# new: nothing is wanted of it yet; starting: its first owner is being loaded; serving: an owner answers, an update brings another one;
# replacing: its owner is gone, the next one is started at once, after a pause, or (asleep) when a frame comes, and frames wait in the log
# meanwhile; failed: no owner can be loaded, callers get the error, and loading is tried again; stopping, stopped: no owner will be started.
SLOT: Mapping[str, tuple[str, ...]] = {
    "new": ("starting", "serving", "stopping"),
    "starting": ("serving", "failed", "stopping"),
    "serving": ("serving", "replacing", "stopping"),
    "replacing": ("serving", "failed", "stopping"),
    "failed": ("failed", "starting", "replacing", "serving", "stopping"),
    "stopping": ("stopped",),
    "stopped": (),
}


if __name__ == "__main__":
    print(diagram(SLOT))
