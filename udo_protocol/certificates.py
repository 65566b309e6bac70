"""Certificates for connections between hosts: a folder with `ca.crt` (the authority that must have signed the other side's certificate),
`tls.crt` and `tls.key` (this side's own), in PEM form, with the names that Kubernetes and cert-manager use.

The files are read again for every new connection, so replacing them takes effect without a restart. Nothing here opens a connection.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from udo_protocol.errors import UsageError

if TYPE_CHECKING:
    import ssl

CA, CERTIFICATE, KEY = "ca.crt", "tls.crt", "tls.key"
# The host's folder, used when no other one is named.
SYSTEM_FOLDER = Path("/etc/udo/tls")
# A certificate and its key are two files: a read that falls between their replacements is repeated, this many times after this pause.
_READS, _READ_AGAIN_S = 5, 0.02


@dataclass(frozen=True)
class Tls:
    """Paths of PEM files: the authority of the other side's certificate, and this side's own certificate and key."""

    ca: Path
    certificate: Path
    key: Path

    @classmethod
    def folder(cls, folder: str | Path) -> Tls:
        """The files in this folder, which are not read yet."""
        top = Path(folder).expanduser().absolute()
        return cls(top / CA, top / CERTIFICATE, top / KEY)

    def stamp(self) -> tuple[tuple[int, int, int], ...]:
        """A value that changes whenever one of the files is replaced or written."""
        try:
            return tuple((s.st_ino, s.st_mtime_ns, s.st_size) for s in map(os.stat, (self.ca, self.certificate, self.key)))
        except OSError as e:
            raise _unusable(e.filename, e) from e

    def pem(self) -> Pem:
        """The contents of the files, checked to belong together; UsageError names the file that does not fit."""
        for _ in range(_READS):
            before = self.stamp()
            client_context(self)
            try:
                found = Pem(self.ca.read_bytes(), self.certificate.read_bytes(), self.key.read_bytes())
            except OSError as e:
                raise _unusable(e.filename, e) from e
            if self.stamp() == before:
                return found
        raise UsageError(f"{self.ca.parent}: the certificates are replaced over and over; expected them to stay for a moment")


@dataclass(frozen=True)
class Pem:
    """The contents of the files of a Tls."""

    ca: bytes
    certificate: bytes
    key: bytes


def found(given: str | Path | None, home: Path) -> Tls | None:
    """The folder that was given, else `tls` in the home of `udo up`, else the system's; None if none of them exists."""
    if given:
        return Tls.folder(given)
    for folder in (home / "tls", SYSTEM_FOLDER):
        if os.path.isdir(folder):  # also False without permission to look
            return Tls.folder(folder)
    return None


def client_context(tls: Tls) -> ssl.SSLContext:
    """A context for one connection: it checks the server's chain and host name, and presents this side's certificate."""
    import ssl  # imported only here, since instances do not need it and start faster without

    return loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), tls)


def fresh_context(tls: Tls) -> ssl.SSLContext:
    """Like `client_context`, for a client that keeps its context: each connection uses the files as they are when it is made."""
    import ssl

    class Fresh(ssl.SSLContext):
        def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
            return client_context(tls).wrap_socket(*args, **options)

    client_context(tls)  # report unusable files now
    return Fresh(ssl.PROTOCOL_TLS_CLIENT)


def loaded(context: ssl.SSLContext, tls: Tls) -> ssl.SSLContext:
    """Load these files into the context; UsageError if they cannot be used."""
    try:
        context.load_verify_locations(tls.ca)
    except OSError as e:
        raise UsageError(f"expected certificates in PEM form in {tls.ca}: {e}") from e
    for attempt in range(1, _READS + 1):
        try:
            context.load_cert_chain(tls.certificate, tls.key)
            break
        except OSError as e:
            if attempt == _READS:
                raise UsageError(f"expected a certificate in {tls.certificate} and its key in {tls.key}, in PEM form: {e}") from e
        time.sleep(_READ_AGAIN_S)
    return context


def _unusable(name: object, e: OSError) -> UsageError:
    return UsageError(f"{name} cannot be read: {e.strerror}; expected a folder with {CA}, {CERTIFICATE} and {KEY} (udo certs makes them)")
