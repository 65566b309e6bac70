"""One blocking connection to a queue or state server (transport.py): the hot path's own RESP codec.

It never reconnects and never retries: a lost connection is ServerLost, and the owner of the attempt starts over. A server that
does not answer in time counts as lost too, since late replies would be taken for those to later commands. Bulk replies arrive in
buffers of their own and large arguments are sent without being joined, so payload is copied once.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from udo_protocol.certificates import Tls
from udo_protocol.errors import PeerError, ProtocolError, ServerLost, Unauthorized
from udo_protocol.limits import SERVER_WAIT_S
from udo_protocol.queue import transport
from udo_protocol.queue.frame import Bytes

Arg = bytes | bytearray | memoryview | str | int | Sequence[Bytes]
# Below this size an argument is cheaper to copy into the command's buffer than to send as a piece of its own.
_JOIN_BYTES = 8192
_RECEIVE_BYTES = 1 << 16
# The largest value that the servers hold; a reader of untrusted values sets a lower bound.
_BULK_BYTES = 512 << 20


class ReplyError(PeerError):
    """The server refused a command; carries its text."""

    code = "server"


# Replaces a value that exceeds the reader's bound (Connection.at_most).
BEYOND = ReplyError("BEYOND more than the reader keeps")
# The overhead of one value for its reader, in bytes.
_ITEM_BYTES = 64


class ServerLoading(ServerLost):
    """The server is back, but still reading its file."""


@dataclass(frozen=True)
class Login:
    """User and password of a connection."""

    user: str
    password: str = field(repr=False)


def as_int(value: Any, default: int = 0) -> int:
    """The number in a reply; `default` for an absent key."""
    return default if value is None else int(value)


class Connection:
    """A connection; `run_id` is the server's, which changes with each of its starts. Not safe for use by several threads at once.

    `path`: the path of a Unix socket, or `rediss://host:port` with the certificates `tls`.
    """

    def __init__(
        self,
        path: str,
        *,
        run_id: str | None = None,
        timeout_s: float = SERVER_WAIT_S,
        login: Login | None = None,
        tls: Tls | None = None,
    ) -> None:
        self.path, self.login = path, login
        self.place = ""  # where the connection leads; begins the text of the error when it is lost
        self._timeout_s = 0.0
        self._held: list[Any] = []  # commands that wait for the next write
        self._buffer = bytearray(_RECEIVE_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self.bulk_bytes = _BULK_BYTES
        self._budget_bytes: int | None = None
        try:
            self._socket = transport.connect(path, timeout_s, tls)
        except BlockingIOError:
            raise self._gone(f"it did not answer within {timeout_s:g} s") from None
        except OSError as e:
            raise ServerLost(f"no server answers on {path}: {e}; is the node manager running? (udo status)") from e
        self.default_timeout_s = timeout_s
        self._set_timeout(timeout_s)
        try:
            info = self._greet()
        except BaseException:  # the server may still be loading its file
            self.close()
            raise
        self.run_id = next(line[7:] for line in info.splitlines() if line.startswith("run_id:"))
        if run_id is not None and run_id != self.run_id:
            self.close()
            raise ServerLost(f"the server on {path} was restarted: expected run {run_id}, found {self.run_id}; what it held is gone")

    def _greet(self) -> str:
        """Log in and request the server's INFO, in one round trip; Unauthorized if the server does not know the login."""
        auth: list[Sequence[Arg]] = [("AUTH", self.login.user, self.login.password)] if self.login else []
        self.send([*auth, ("INFO", "server")])
        for reply in [self.receive() for _ in range(len(auth) + 1)]:
            if isinstance(reply, ReplyError):
                what = f"failed for user {self.login.user}" if self.login else "required"
                raise Unauthorized(f"authentication {what} at the server on {self.path}: {reply}") from reply
        return bytes(reply).decode()

    def close(self) -> None:
        """Release the socket; further use is an error."""
        self._socket.close()

    def call(self, *args: Arg, timeout_s: float | None = None) -> Any:
        """Send one command and return its reply: bytes, int, list or None. ReplyError if the server refuses it."""
        self.send([args])
        return self.reply(timeout_s)

    def reply(self, timeout_s: float | None = None) -> Any:
        """The next reply; ReplyError if the server refused."""
        reply = self.receive(timeout_s)
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def transaction(self, commands: Sequence[Sequence[Arg]]) -> list[Any]:
        """Run the commands as one MULTI and return their replies."""
        self.send_transaction(commands)
        return self.receive_transaction(len(commands))

    def send_transaction(self, commands: Sequence[Sequence[Arg]]) -> None:
        """Send a MULTI without waiting; pair with receive_transaction."""
        self.send([("MULTI",), *commands, ("EXEC",)])

    def receive_transaction(self, commands: int) -> list[Any]:
        """Replies of a MULTI of that many commands. Any error in it is raised: the state is then unknown."""
        result = self.receive_outcomes(commands)
        for r in result:
            if isinstance(r, ReplyError):
                raise r
        return result

    def receive_outcomes(self, commands: int) -> list[Any]:
        """Like receive_transaction, but return a failed command's error in its place; raise the error that kept the MULTI from running."""
        replies = [self.receive() for _ in range(commands + 2)]
        for r in replies:
            if isinstance(r, ReplyError):
                raise r
        if replies[-1] is None:
            raise ReplyError("a transaction was discarded although it watches nothing")
        return list(replies[-1])

    @contextmanager
    def at_most(self, size: int) -> Iterator[None]:
        """Keep values of replies in this context up to `size` bytes in all; each further value is skipped, and replaced by BEYOND."""
        self._budget_bytes = size
        try:
            yield
        finally:
            self._budget_bytes = None

    def send(self, commands: Iterable[Sequence[Arg]], *, hold: bool = False) -> None:
        """Write commands without waiting for their replies; with `hold` they may be sent with the next ones, in one write."""
        pieces, self._held = self._held, []
        small = bytearray()
        for args in commands:
            small += b"*%d\r\n" % len(args)
            for arg in args:
                parts: Sequence[Any]
                if isinstance(arg, str):
                    parts = (arg.encode(),)
                elif isinstance(arg, int):
                    parts = (b"%d" % arg,)
                elif isinstance(arg, (list, tuple)):
                    parts = arg
                else:
                    parts = (arg,)
                small += b"$%d\r\n" % sum(map(len, parts))
                for part in parts:
                    if len(part) < _JOIN_BYTES:
                        small += memoryview(part)
                    else:
                        pieces += (small, part)
                        small = bytearray()
                small += b"\r\n"
        pieces.append(small)
        if hold:
            self._held = pieces
        else:
            self._write(pieces)

    def _write(self, pieces: list[Any]) -> None:
        try:
            if len(pieces) == 1:
                self._socket.sendall(pieces[0])
                return
            views = [memoryview(p).cast("B") for p in pieces if len(p)]
            while views:
                sent = self._socket.sendmsg(views[:64])
                while views and sent >= len(views[0]):
                    sent -= len(views.pop(0))
                if sent:
                    views[0] = views[0][sent:]
        except BlockingIOError:
            self._silent(self.default_timeout_s)
        except OSError as e:
            self._lost(e)

    def receive(self, timeout_s: float | None = None) -> Any:
        """The next reply; a ReplyError is returned, not raised, since it may stand inside a pipeline."""
        if self._held:
            self.send([])
        wanted = self.default_timeout_s if timeout_s is None else timeout_s
        if wanted > self._timeout_s:  # the time-out only grows: resetting it would cost two system calls per frame
            self._set_timeout(wanted)
        return self._reply()

    def sleep_through(self, size: int) -> None:
        """Block until more than `size` bytes of replies have come: a reader woken earlier would only sleep again."""
        if self._held:
            self.send([])
        if self._start == self._end:
            self._start = self._end = 0
        if (missing := size + 1 - (self._end - self._start)) > 0:
            self._end += self._receive_into(self._view[self._end : self._end + missing], missing)

    def _reply(self) -> Any:
        line = self._line()
        kind, rest = line[0], line[1:]
        if kind == 36:  # $
            size = int(rest)
            return None if size < 0 else self._bulk(size)
        if kind == 42:  # *
            count = int(rest)
            return None if count < 0 else [self._reply() for _ in range(count)]
        if kind == 58:  # :
            return int(rest)
        if kind == 43:  # +
            return rest
        if kind == 45:  # -
            if rest.startswith(b"LOADING"):
                self.close()
                raise ServerLoading(f"the server on {self.path} is back, but still reading its file")
            return ReplyError(rest.decode("utf-8", "replace"))
        self.close()
        raise ReplyError(f"the peer on {self.path} does not speak RESP: {line[:40]!r}")

    def _line(self) -> bytes:
        while True:
            at = self._buffer.find(b"\r\n", self._start, self._end)
            if at >= 0:
                line = bytes(self._view[self._start : at])
                self._start = at + 2
                return line
            self._fill()

    def _bulk(self, size: int) -> bytes | pa.Buffer | ReplyError:
        if self._budget_bytes is not None:
            self._budget_bytes -= size + _ITEM_BYTES
            if self._budget_bytes < 0:
                self._read_past(size + 2)
                return BEYOND
        return self._value(size)

    def _value(self, size: int) -> bytes | pa.Buffer:
        if size > self.bulk_bytes:
            self.close()  # the replies that follow can no longer be found in the stream
            raise ProtocolError(f"a value of {size} bytes; the bound is {self.bulk_bytes}")
        have = self._end - self._start
        if have >= size + 2:
            data = bytes(self._view[self._start : self._start + size])
            self._start += size + 2
            return data
        if size < _JOIN_BYTES:
            while self._end - self._start < size + 2:
                self._fill()
            return self._value(size)
        # Arrow's pool neither zeroes nor frees memory that the next frame needs again: a third less processor time than a
        # bytearray for a frame of 320 KB, over all three processes.
        big = pa.allocate_buffer(size)
        view = memoryview(big).cast("B")
        have = min(have, size)
        view[:have] = self._view[self._start : self._start + have]
        self._start += have
        while have < size:
            have += self._receive_into(view[have:], size - have)
        while self._end - self._start < 2:
            self._fill()
        self._start += 2
        return big

    def _read_past(self, size: int) -> None:
        while size > (have := self._end - self._start):
            size -= have
            self._start = self._end = 0
            self._fill()
        self._start += size

    def _fill(self) -> None:
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end == len(self._buffer):
            rest = bytes(self._view[self._start : self._end])
            self._buffer[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
        self._end += self._receive_into(self._view[self._end :], 0)

    def _receive_into(self, view: memoryview, all_of: int) -> int:
        try:
            n = self._socket.recv_into(view, 0, socket.MSG_WAITALL if all_of else 0)
        except BlockingIOError:
            self._silent(self._timeout_s)
        except OSError as e:
            self._lost(e)
        if n == 0:
            self._lost("it closed the connection")
        return n

    def _lost(self, why: object) -> Any:
        self.close()
        raise self._gone(why) from None

    def _gone(self, why: object) -> ServerLost:
        place = f"{self.place}: " if self.place else ""
        return ServerLost(f"{place}the server on {self.path} is gone: {why}; the unanswered frames have to be retried")

    def _silent(self, waited_s: float) -> Any:
        self._lost(f"it did not answer within {waited_s:g} s")

    def _set_timeout(self, seconds: float) -> None:
        self._socket.wait_at_most(seconds)
        self._timeout_s = seconds
