"""gRPC channels to node managers: each process keeps its own, and closes them before it ends."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from threading import Lock
from typing import Any

import grpc

_channels: dict[tuple[Any, ...], grpc.Channel] = {}
_lock = Lock()


def kept(path: str, stamp: tuple[Any, ...], new: Callable[[], grpc.Channel]) -> grpc.Channel:
    """This process's channel to that node; a new one if the stamp has changed."""
    key = (os.getpid(), path, stamp)
    with _lock:
        if key not in _channels:
            made = new()
            for former in [known for known in _channels if known[:2] == key[:2]]:
                del _channels[former]  # it ends with its calls under way
            _channels[key] = made
        return _channels[key]


@atexit.register
def close(path: str = "") -> None:
    """Close this process's channels to that node, or all: gRPC waits for calls under way, and forever once its own threads have ended."""
    with _lock:
        mine = [key for key in _channels if key[0] == os.getpid() and path in ("", key[1])]
        channels = [_channels.pop(key) for key in mine]
    for channel in channels:
        channel.close()
