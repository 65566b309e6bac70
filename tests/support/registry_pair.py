"""Two registry processes behind one PostgreSQL database."""

from __future__ import annotations

from pathlib import Path

from tests.registry.conftest import Running, start
from udo_protocol.registry.api import Registry


class Pair:
    """Two processes of one registry, a and b."""

    def __init__(self, top: Path, database: str) -> None:
        self._top, self.database, self.shared = top, database, top / "shared"
        self.running: dict[str, Running] = {}
        for name in ("a", "b"):
            self.start(name)
        self.urls = [self.running[name].url for name in ("a", "b")]
        self.token = (self.shared / "token").read_text().strip()
        self._clients: list[Registry] = []

    def start(self, name: str) -> None:
        self.running[name] = start(self._top / name, "--database", self.database, "--shared", str(self.shared))

    def client(self, *order: int, user: str = "ada") -> Registry:
        """A client that asks these processes (0 is a, 1 is b), in this order."""
        self._clients.append(Registry(",".join(self.urls[i] for i in order), token=self.token, user=user))
        return self._clients[-1]

    def stop(self) -> None:
        for client in self._clients:
            client.close()
        for running in self.running.values():
            running.stop()
