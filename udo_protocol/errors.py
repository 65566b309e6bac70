"""Every error of the project. One root; "you misused it" and "the other side misbehaved" are branches.

Across a wire an error travels as (code, retry, message), never as text to be matched.
"""

from __future__ import annotations

import os
import traceback


class UdoError(Exception):
    """Root of all errors; `code` is stable, `retry` says whether the same step may succeed later."""

    code = "error"
    retry = False

    def _render_traceback_(self) -> list[str]:
        """The traceback that IPython shows: only the message, since our own frames add nothing to it; everything with UDO_DEBUG=1."""
        if os.environ.get("UDO_DEBUG"):
            return traceback.format_exception(self)
        return [f"{type(self).__name__}: {self}"]


class UsageError(UdoError):
    """You misused it: the input, the call or the setting has to change."""

    code = "usage"


class ManifestError(UsageError):
    """An operator's manifest is malformed: names the file, the field, the expected and the actual value."""

    code = "manifest"


class SchemaError(UsageError):
    """Columns or types do not fit: names each column, the expected and the actual type."""

    code = "schema"


class NotFound(UsageError):
    """No operator, version or deployment of that name; lists similar names."""

    code = "not_found"


class Conflict(UsageError):
    """The name is taken by other content, or the step is not allowed in the current state."""

    code = "conflict"


class Unauthorized(UsageError):
    """A login, or a request that needs a token, without valid credentials."""

    code = "unauthorized"


class SignatureError(UsageError):
    """An operator version without a signature by a key that the registry trusts; names the keys."""

    code = "signature"


class Refused(UsageError):
    """A pushed version that a node does not unpack or run: says why. The node does not try again until something has changed."""

    code = "refused"


class PeerError(UdoError):
    """The other side misbehaved or is away."""

    code = "peer"


class Unavailable(PeerError):
    """A registry, node manager or server does not answer; says which, where, and how to start it."""

    code = "unavailable"
    retry = True


class NodeAway(Unavailable):
    """No node manager answers at an address where one may have run and may come back: names the host and the socket."""

    code = "node_away"


class SlotsAway(NodeAway):
    """The node that was asked answers, but another node with slots of the deployment does not: names that node and the slots."""

    code = "slots_away"


class WaitTimeout(PeerError):
    """A bounded wait ended without result; says for what and how long it waited."""

    code = "timeout"
    retry = True


class ServerLost(PeerError):
    """The queue or state server went away, was restarted (its run id changed) or does not answer: the attempt must be retried."""

    code = "server_lost"
    retry = True


class Untrusted(PeerError):
    """The TLS handshake with a server failed: one side does not accept the other's certificate. Says which side, and why."""

    code = "untrusted"


class LaneExpired(PeerError):
    """The lane was idle beyond its lease, and its data has been removed."""

    code = "lane_expired"
    retry = True


class ProtocolError(PeerError):
    """Bytes that are not a frame of this protocol version: truncated, garbled, or of another version."""

    code = "protocol"


class StrayAnswer(ProtocolError):
    """An answer to another lane, or to a frame that was not sent: the operator, or a process that answered for it, mixed lanes up."""

    code = "stray_answer"


class SlotBroken(PeerError):
    """A key of a slot holds invalid data, written by the slot's operator, which may write there. Names the key."""

    code = "slot_broken"
    retry = True


class StateLost(PeerError):
    """The durable state ends before the epoch that a query continues from; names both epochs."""

    code = "state_lost"


class StateElsewhere(UsageError):
    """The state of a keyed session lies on another node than the one that was asked; names both nodes and the remedy."""

    code = "state_elsewhere"


class TwoProducers(UsageError):
    """Two partitions of one run sent events of the same key group in one epoch, or two calls share one session."""

    code = "two_producers"


class Stale(PeerError):
    """A newer attempt at the same work is known; the answers to this attempt do not count."""

    code = "stale"


class Fenced(PeerError):
    """This instance is no longer the owner of its slot and must leave."""

    code = "fenced"


class OperatorError(UdoError):
    """The operator failed: carries its own traceback and, if known, the offending event."""

    code = "operator"


def by_code(code: str, message: str) -> UdoError:
    """The error with that wire code, or a plain UdoError for a code that this version does not know."""
    pending: list[type[UdoError]] = [UdoError]
    while pending:
        cls = pending.pop()
        if cls.code == code:
            return cls(message)
        pending.extend(cls.__subclasses__())
    return UdoError(message)
