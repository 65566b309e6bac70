"""Certificates of a test: an authority, and what it signs, as files in PEM form."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from udo_protocol.queue.transport import Tls

_DAY = dt.timedelta(days=1)


@dataclass(frozen=True)
class Authority:
    """Signs certificates for hosts and clients."""

    directory: Path
    name: str
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def new(cls, directory: Path, name: str = "ca") -> Authority:
        """With its own certificate in `{name}.crt`."""
        made = cls(directory, name, ec.generate_private_key(ec.SECP256R1()))
        made._write(name, made.key, made.key, x509.BasicConstraints(ca=True, path_length=None), dt.datetime.now(dt.UTC) + _DAY)
        return made

    def signed(self, name: str, host: str = "127.0.0.1", *, expired: bool = False) -> Tls:
        """The files of somebody who trusts this authority and shows a certificate by it."""
        key = ec.generate_private_key(ec.SECP256R1())
        until = dt.datetime.now(dt.UTC) + (-_DAY if expired else _DAY)
        self._write(name, key, self.key, x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]), until)
        return Tls(self.directory / f"{self.name}.crt", self.directory / f"{name}.crt", self.directory / f"{name}.key")

    def _write(
        self, name: str, key: ec.EllipticCurvePrivateKey, signer: ec.EllipticCurvePrivateKey, about: x509.ExtensionType, until: dt.datetime
    ) -> None:
        subject, issuer = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, n)]) for n in (name, self.name))
        made = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number(), until - 30 * _DAY, until)
        found = made.add_extension(about, critical=False).sign(signer, hashes.SHA256())
        (self.directory / f"{name}.crt").write_bytes(found.public_bytes(serialization.Encoding.PEM))
        pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        (self.directory / f"{name}.key").write_bytes(pem)
