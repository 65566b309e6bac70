"""What a move costs under each protocol, by a linear model (sections 4.1 to 4.3): its figures are replaced by measured ones."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Protocol(StrEnum):
    """How a key group moves."""

    DIRECT = "direct"
    CPA = "cpa"
    CPAL = "cpal"


@dataclass(frozen=True)
class Costs:
    """Of one move. The defaults are of the order of a local network and of serialising state at 100 MB/s."""

    message_ms: float = 1.0  # from sending a control message to its effect
    state_ms_per_mb: float = 10.0  # to serialise, send and read state
    replay_ms_per_event: float = 0.02  # to send an event of the retained input again and process it
    bytes_per_event: float = 100.0  # of the retained input

    def completion_ms(self, protocol: Protocol, state_bytes: float, replay_events: float) -> float:
        """From the order to move until the new node answers alone."""
        replay = replay_events * self.replay_ms_per_event
        if protocol is Protocol.DIRECT:  # the state is sent, the input trimmed to nothing, then as CPA
            return 3 * self.message_ms + state_bytes / 1e6 * self.state_ms_per_mb
        return (2 if protocol is Protocol.CPA else 4) * self.message_ms + replay

    def latency_ms(self, protocol: Protocol, state_bytes: float, replay_events: float) -> float:
        """How long the group's processing pauses: all of it, but with CPAL only for the synchronisation."""
        return 2 * self.message_ms if protocol is Protocol.CPAL else self.completion_ms(protocol, state_bytes, replay_events)

    def moved_bytes(self, protocol: Protocol, state_bytes: float, replay_events: float) -> float:
        """What goes over the network."""
        return state_bytes if protocol is Protocol.DIRECT else replay_events * self.bytes_per_event
