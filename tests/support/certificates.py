"""Certificates, signed by the authority that `udo certs` makes, and the relay, for tests with other hosts."""

from __future__ import annotations

import shutil
from pathlib import Path

from node_manager.servers.tls_relay import find_relay
from tests.conftest import require
from udo_cli.platform.authority import Authority
from udo_protocol.certificates import Tls
from udo_protocol.errors import Unavailable


def signed(authority: Path, name: str, host: str = "127.0.0.1", *, expired: bool = False) -> Tls:
    """The files of a client or server, with this authority's certificate for this host; the authority is made if there is none."""
    return Authority.of(authority).sign(name, [host], -1 if expired else 1)


def replace(folder: Path, by: Tls) -> None:
    """Replace the files in the folder with these, one after the other, as an administrator does."""
    files = Tls.folder(folder)
    for old, new in ((files.ca, by.ca), (files.key, by.key), (files.certificate, by.certificate)):
        shutil.copy(new, old)


def require_relay() -> None:
    """Skip, or fail where all parts are required, if there is no Envoy."""
    try:
        find_relay()
    except Unavailable as e:
        require("Envoy", str(e))
