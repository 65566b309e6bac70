"""A linear model of the cost of a move under each protocol (sections 4.1 to 4.3); measured figures replace its defaults."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Protocol(StrEnum):
    """Protocols for moving a key group."""

    DIRECT = "direct"
    CPA = "cpa"
    CPAL = "cpal"


@dataclass(frozen=True)
class Costs:
    """The costs of one move. The defaults are about those of a local network, and of serialising state at 100 MB/s."""

    message_ms: float = 1.0  # from sending a control message to its effect
    state_ms_per_mb: float = 10.0  # to serialise, send and read state
    replay_ms_per_event: float = 0.02  # to send an event of the retained input again and process it
    bytes_per_event: float = 100.0  # size of an event of the retained input

    def completion_ms(self, protocol: Protocol, state_bytes: float, replay_events: float) -> float:
        """Time from the order to move until the new node answers alone."""
        replay = replay_events * self.replay_ms_per_event
        if protocol is Protocol.DIRECT:  # the state is sent, the input trimmed to nothing, then as with CPA
            return 3 * self.message_ms + state_bytes / 1e6 * self.state_ms_per_mb
        return (2 if protocol is Protocol.CPA else 4) * self.message_ms + replay

    def latency_ms(self, protocol: Protocol, state_bytes: float, replay_events: float) -> float:
        """The pause of the group's processing: the whole move, but with CPAL only the synchronisation."""
        return 2 * self.message_ms if protocol is Protocol.CPAL else self.completion_ms(protocol, state_bytes, replay_events)

    def moved_bytes(self, protocol: Protocol, state_bytes: float, replay_events: float) -> float:
        """Bytes sent over the network."""
        return state_bytes if protocol is Protocol.DIRECT else replay_events * self.bytes_per_event
