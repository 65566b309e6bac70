"""gRPC channels to node managers: each process has its own, keeps them, and closes them before it ends."""

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
    """This process's channel to that node; another one if the stamp is another."""
    key = (os.getpid(), path, stamp)
    with _lock:
        if key not in _channels:
            _channels[key] = new()
        return _channels[key]


@atexit.register
def close(path: str = "") -> None:
    """Close this process's channels to that node, or all: gRPC waits for a call under way, and for ever once its threads have gone."""
    with _lock:
        mine = [key for key in _channels if key[0] == os.getpid() and path in ("", key[1])]
        channels = [_channels.pop(key) for key in mine]
    for channel in channels:
        channel.close()
