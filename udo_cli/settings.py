"""Settings of the command line, read once per command at the edge: argument, then environment, then default."""

from __future__ import annotations

import getpass
import os
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from udo_cli.home import Home
from udo_protocol.certificates import Tls, found
from udo_protocol.errors import Unauthorized, Unavailable, UsageError


def _home() -> Path:
    try:
        return Path.home() / ".udo"
    except RuntimeError:
        raise UsageError(
            f"the user of this process (uid {os.getuid()}) has no home directory: HOME is not set and there is no entry for it in "
            "/etc/passwd. Set UDO_HOME to a directory that it can write to"
        ) from None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # KeyError before Python 3.13, OSError since
        return f"uid {os.getuid()}"


class CliSettings(BaseSettings):
    """`UDO_HOME`, `UDO_REGISTRY`, `UDO_TOKEN`, `UDO_TOKEN_FILE`, `UDO_NODE`, `UDO_TLS`, `UDO_USER`."""

    model_config = SettingsConfigDict(env_prefix="UDO_", frozen=True, extra="ignore")

    home: Path = Field(default_factory=_home)
    registry: str | None = None
    token: str | None = Field(default=None, repr=False)
    token_file: Path | None = None
    node: str | None = None
    tls: Path | None = None
    user: str = Field(default_factory=_user)

    @property
    def local(self) -> Home:
        """The folder that `udo up` works in."""
        return Home(self.home.expanduser().absolute())

    def certificates(self) -> Tls | None:
        """The certificates of UDO_TLS, of `udo up --tls`, or of the host; None if there are none."""
        return found(self.tls, self.local.path)

    def registry_url(self) -> str:
        """The URL of UDO_REGISTRY, else of the registry that `udo up` started; Unavailable says how to name or start one."""
        if self.registry:
            return self.registry
        if url := self.local.registry_url():
            return url
        raise Unavailable(f"no registry: UDO_REGISTRY is not set and none was started under {self.local.path}. Start one with: udo up")

    def write_token(self) -> str | None:
        """The write token: UDO_TOKEN, UDO_TOKEN_FILE, or the local registry's own if the local registry is in use."""
        if self.token:
            return self.token
        path = self.token_file or (self.local.token_file if not self.registry or self.registry == self.local.registry_url() else None)
        if path is None:
            return None
        try:
            return next((line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()), None)
        except FileNotFoundError:
            if self.token_file:
                raise Unauthorized(f"the token file {path} does not exist; set UDO_TOKEN or UDO_TOKEN_FILE") from None
            return None

    def local_node(self) -> str | None:
        """The node manager's socket: UDO_NODE, the one `udo up` started, or the system-wide one; None if there is none."""
        there = (str(path) for path in (self.local.node_socket, Path("/run/udo/node.sock")) if path.exists())
        return self.node or next(there, None)

    def node_address(self) -> str:
        """As `local_node`, but Unavailable, which says how to name or start a node manager, if there is none."""
        if address := self.local_node():
            return address
        raise Unavailable(f"no node manager: UDO_NODE is not set and there is none under {self.local.path}. Start one with: udo up")
