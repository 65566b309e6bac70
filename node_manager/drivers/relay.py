"""`python relay.py PIDFD NETNS PLACES`: lets an instance that has no network reach single endpoints, and ends with the instance.

It listens in the instance's own network, where each endpoint has an address on the loopback, and connects from the node's. It passes bytes
on and inspects none. PLACES is JSON: [[address inside, port, host outside], ...]. Needs nothing but the standard library.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import ipaddress
import json
import os
import socket
import struct
import sys
from functools import partial

READY = b"ready\n"
_CONNECT_TIMEOUT_S = 10.0
# Connections of one instance at a time; any more are reset.
_MOST_CONNECTIONS = 256
_BACKLOG = 64
_PIECE_BYTES = 1 << 16
_MESSAGE_BYTES = 1 << 10
# linux/nsfs.h, linux/sched.h, linux/sockios.h
_NS_GET_USERNS = 0xB701
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCSIFADDR, _SIOCSIFNETMASK = 0x8916, 0x891C
_OK = b"+"


def listeners(netns: int, places: list[tuple[str, int]]) -> list[socket.socket]:
    """Sockets that listen at these places of that network; OSError with the reason if they cannot. A child makes them, since a process that
    enters a network stays there."""
    ours, theirs = socket.socketpair()
    if (child := os.fork()) == 0:
        try:
            _enter(netns)
            made = [_listen(address, port) for address, port in places]
            socket.send_fds(theirs, [_OK], [s.fileno() for s in made])
        except OSError as e:
            theirs.send(str(e).encode()[:_MESSAGE_BYTES])
        finally:
            os._exit(0)
    theirs.close()
    said, fds, _, _ = socket.recv_fds(ours, _MESSAGE_BYTES, len(places))
    os.waitpid(child, 0)
    if said != _OK:
        raise OSError(said.decode() or "its network namespace cannot be entered")
    return [socket.socket(fileno=fd) for fd in fds]


def _enter(netns: int) -> None:
    """Enter the network, with the rights that its owner has in it: those of the user namespace it was made in."""
    libc = ctypes.CDLL(None, use_errno=True)
    for fd, kind in ((fcntl.ioctl(netns, _NS_GET_USERNS), _CLONE_NEWUSER), (netns, _CLONE_NEWNET)):
        if libc.setns(fd, kind):
            number = ctypes.get_errno()
            raise OSError(number, f"its network namespace cannot be entered: {os.strerror(number)}")


def _listen(address: str, port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if not ipaddress.ip_address(address).is_loopback:
        _give(made, address)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((address, port))
    made.listen(_BACKLOG)
    return made


def _give(any_socket: socket.socket, address: str) -> None:
    """Give the loopback this address, alone, beside its own."""
    name = b"lo:" + socket.inet_aton(address).hex().encode()
    for request, value in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, "255.255.255.255")):
        fcntl.ioctl(any_socket, request, struct.pack("16sHH4s16x", name, socket.AF_INET, 0, socket.inet_aton(value)))


class Relay:
    """The connections of one instance."""

    def __init__(self) -> None:
        self._open = 0

    async def take(self, host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection to host:port. If that cannot be reached, reset the connection and say so in the instance's log."""
        self._open += 1
        try:
            if self._open > _MOST_CONNECTIONS:
                raise OSError(f"{_MOST_CONNECTIONS} connections are open already")
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                there_reader, there = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError) as e:
            print(f"network: {host}:{port}: {e or f'no answer for {_CONNECT_TIMEOUT_S:g} s'}", file=sys.stderr, flush=True)
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
        else:
            with contextlib.suppress(OSError):
                await asyncio.gather(_pass(reader, there), _pass(there_reader, writer))
            for each in (there, writer):
                each.transport.abort()
        finally:
            self._open -= 1


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(_PIECE_BYTES):
        writer.write(piece)
        await writer.drain()
    writer.write_eof()


async def serve(pidfd: int, found: list[tuple[socket.socket, str, int]]) -> None:
    """Relay until the instance is gone."""
    gone, relay = asyncio.Event(), Relay()
    asyncio.get_running_loop().add_reader(pidfd, gone.set)
    for listener, host, port in found:
        await asyncio.start_server(partial(relay.take, host, port), sock=listener)
    os.write(1, READY)
    await gone.wait()
    os._exit(0)  # connections end with it; asyncio would write into the instance's log that each was cancelled


def main() -> None:
    """Relay until the process behind the first argument (a pidfd) ends."""
    pidfd, netns, places = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    try:
        made = listeners(netns, [(address, port) for address, port, _ in places])
    except OSError as e:
        sys.exit(str(e))
    asyncio.run(serve(pidfd, [(s, host, port) for s, (_, port, host) in zip(made, places, strict=True)]))


if __name__ == "__main__":
    main()
