"""Receives large bodies from a registry on this machine with the standard library, since httpx takes longer than copying the file.

Imported at the first download; knows neither endpoints nor our errors.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException, HTTPResponse
from urllib.parse import urlsplit

__all__ = ["HTTPException", "PlainConnection", "filler", "prefix"]


class PlainConnection(HTTPConnection):
    """A connection to `http://host:port` or `unix:/path.sock`."""

    def __init__(self, url: str, timeout_s: float) -> None:
        parts = urlsplit(url)
        super().__init__(parts.hostname or "registry", parts.port, timeout=timeout_s)
        self._unix = url.removeprefix("unix:") if url.startswith("unix:") else None

    def connect(self) -> None:
        if self._unix is None:
            return super().connect()
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._unix)


def prefix(url: str) -> str:
    """The path prefix of a registry that is not served at the root."""
    return "" if url.startswith("unix:") else urlsplit(url).path


def filler(body: HTTPResponse) -> Callable[[memoryview], int]:
    """A function that reads the next bytes of the body into a buffer and returns their number, 0 at the end; OSError if it breaks off."""

    def fill(buffer: memoryview) -> int:
        left = body.length or 0
        try:
            came = body.readinto(buffer)
        except HTTPException as e:
            raise OSError(f"{type(e).__name__}: {e}") from e
        if left and not came:
            raise OSError(f"the connection broke {left} bytes before the end")
        return came

    return fill
