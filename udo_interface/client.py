"""The engine-free client: the paper's UDO interface (section IV-A) as four calls, without Spark.

client = connect("fraud-filter")
client.add_listener(print)
client.send({"card_id": 7, "amount": 99.5})
client.close()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from udo_interface.discovery import certificates, node_address, node_wait_s
from udo_interface.lane.channel import Channel, ChannelSettings, EventsLost, Listener
from udo_interface.lane.opening import Request, reach
from udo_protocol.errors import UdoError, UsageError

__all__ = ["Client", "EventsLost", "connect"]
# Longer than any wait within the channel, so that the channel's clearer error comes first.
CLOSE_TIMEOUT_S = 120.0


class Client:
    """Operators called from any Python program. Listeners run in a background thread; `close` drains."""

    def __init__(self, node: str | None = None, settings: ChannelSettings | None = None, tls: str | None = None) -> None:
        self._node, self._settings, self._tls = node, settings or ChannelSettings(), tls
        self._channels: dict[str, Channel] = {}

    def request_operator(self, name: str, callback: Callable[[str], None] | None = None) -> str:
        """Make the operator reachable; return its address, and pass it to `callback`. Raises NotFound, Unavailable."""
        # Unlike a task, a program does not wait for a node manager, unless UDO_NODE_WAIT_S is set.
        wait_s = node_wait_s(None, default=0.0)
        request = Request(name, window=self._settings.window)
        opened, end = reach(node_address(self._node), request, wait_s=wait_s, tls=certificates(self._tls))
        channel = Channel(opened, end, self._settings)
        self._channels[channel.address] = channel
        if callback is not None:
            callback(channel.address)
        return channel.address

    def send_event(self, address: str, event: Mapping[str, Any]) -> None:
        """Send one event to the operator at `address`; returns at once unless the buffer is full."""
        self._channel(address).send(event)

    def add_listener(self, listener: Listener, address: str | None = None, *, batches: bool = False) -> None:
        """Call `listener` with every answer event (a dict), or with whole record batches."""
        self._channel(address).add(listener, batches)

    def remove_listener(self, listener: Listener, address: str | None = None) -> None:
        """Stop calling `listener`."""
        self._channel(address).remove(listener)

    def send(self, event: Mapping[str, Any]) -> None:
        """send_event to the only operator requested."""
        self._channel(None).send(event)

    def send_batch(self, batch: pa.RecordBatch, address: str | None = None) -> None:
        """Send many events at once, as one frame."""
        self._channel(address).send_batch(batch)

    def unanswered(self, address: str | None = None) -> list[pa.RecordBatch]:
        """The batches that were sent and not answered, oldest first: send these again after an error, once its cause is removed."""
        return self._channel(address).unanswered()

    def flush(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Wait until all events sent are answered and delivered, at most `timeout_s` for each operator; raises the channel's error."""
        for channel in self._channels.values():
            channel.flush(timeout_s)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Drain every operator's events, then close its channel; raises the first error."""
        first: UdoError | None = None
        for channel in self._channels.values():
            try:
                channel.close(timeout_s)
            except UdoError as e:
                first = first or e
        if first is not None:
            raise first

    def _channel(self, address: str | None) -> Channel:
        if address is None and len(self._channels) == 1:
            return next(iter(self._channels.values()))
        if address is None or address not in self._channels:
            known = ", ".join(self._channels) or "none; call request_operator first"
            raise UsageError(f"expected the address of a requested operator, got {address!r}; known: {known}")
        return self._channels[address]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.close()
        except UdoError:
            if error is None:  # else the error of the `with` block is the one to see
                raise


def connect(
    name: str,
    *,
    node: str | None = None,
    batch_events: int = ChannelSettings.batch_events,
    linger_ms: float = ChannelSettings.linger_ms,
    buffer_events: int = ChannelSettings.buffer_events,
    window: int | None = None,
    tls: str | None = None,
) -> Client:
    """A client with operator `name` requested; `node` is the node manager's socket if it is not where discovery looks, or
    https://host:port of one on another host, and `tls` the folder of this side's certificates if that is not where discovery looks.

    batch_events, linger_ms: Algorithm 1's batch size and flush interval. buffer_events: unsent events at which `send` blocks.
    window: the most frames under way.
    """
    client = Client(node, ChannelSettings(batch_events, linger_ms, buffer_events, window=window), tls)
    client.request_operator(name)
    return client
