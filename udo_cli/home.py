"""The paths under UDO_HOME. Nothing is started or stopped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Home:
    """`registry/` (data, address, token) and `node/` (node manager home, sockets)."""

    path: Path

    @property
    def registry(self) -> Path:
        """The registry's data."""
        return self.path / "registry"

    @property
    def node(self) -> Path:
        """The node manager's home."""
        return self.path / "node"

    @property
    def token_file(self) -> Path:
        """The write token of this registry, readable by its owner only."""
        return self.registry / "token"

    @property
    def node_socket(self) -> Path:
        """The node manager's socket."""
        return self.node / "node.sock"

    @property
    def dependencies(self) -> Path:
        """The cache of dependency layers, by the requirements they were resolved from; safe to delete."""
        return self.path / "cache" / "dependencies"

    def registry_url(self) -> str | None:
        """The URL that the registry wrote when it began to listen, or None."""
        try:
            return (self.registry / "address").read_text("utf-8").strip() or None
        except FileNotFoundError:
            return None
