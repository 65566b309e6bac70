"""A node's part in the registry's decisions about replicas: carries them out, and reports the replicas that hold all that was ENDed."""

from __future__ import annotations

from threading import Event

from node_manager.deployments.across import Across
from node_manager.manager import Manager
from node_manager.registry_calls import RegistryCalls

# The registry is told within this time of replicas that hold all that was ENDed.
LOOK_S = 0.25
# The registry replaces a node with replicas 2 s after its last heartbeat.
_BEAT_S = 0.5


def rest(across: Across, stopping: Event, whole_s: float) -> None:
    """Pause between two heartbeats: `whole_s`, or less as soon as there are replicas."""
    while whole_s > 0 and not stopping.wait(min(whole_s, _BEAT_S)) and not across.replicated:
        whole_s -= _BEAT_S


def follow_decisions(manager: Manager, registry: RegistryCalls) -> None:
    """Carry out what the registry said last, and report. To be called again and again, also when nothing was said."""
    manager.copies.keep_wanted()
    manager.sources.name_replicas()
    for found in manager.sources.in_step():
        name, place, version = found.deployment, found.place, found.version
        said = registry.in_step(name, node=manager.settings.node, replica=found.node, place=place, version=version)
        manager.across.learn_one(name, said)
