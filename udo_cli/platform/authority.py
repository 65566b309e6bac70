"""A certificate authority in a folder, for development and tests: signs a certificate for each host, as files in PEM form.

It has no list of revoked certificates and its key lies unencrypted in the folder. For production, let the organisation's own authority
write the same three files for each host (cert-manager, step-ca, Vault).
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from udo_protocol.certificates import CA, Tls
from udo_protocol.errors import UsageError
from udo_protocol.files import replace_file

CA_KEY = "ca.key"
CA_DAYS, CERTIFICATE_DAYS = 3650, 365
# Certificates begin this much earlier, so that hosts whose clocks are behind accept a new one.
_CLOCKS_DIFFER = dt.timedelta(hours=1)
# Names by which a host's daemons are reached on the host itself.
_NEAR = ("localhost", "127.0.0.1", "::1")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")


@dataclass(frozen=True)
class Authority:
    """An authority: `folder` has its certificate and key, and a folder for each name that it has signed for."""

    folder: Path
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def of(cls, folder: Path) -> Authority:
        """The authority in this folder, or a new one; UsageError if its files cannot be used."""
        there = [(folder / name).exists() for name in (CA, CA_KEY)]
        if all(there):
            try:
                key = serialization.load_pem_private_key((folder / CA_KEY).read_bytes(), None)
                certificate = x509.load_pem_x509_certificate((folder / CA).read_bytes())
            except ValueError as e:
                raise UsageError(f"expected a certificate in {folder / CA} and its key in {folder / CA_KEY}, in PEM form: {e}") from e
            if not isinstance(key, ec.EllipticCurvePrivateKey):
                raise UsageError(f"{folder / CA_KEY}: expected the key of an authority that udo certs has made, got another kind of key")
            return cls(folder, certificate, key)
        if any(there):
            raise UsageError(f"{folder} has one of {CA} and {CA_KEY}, and not the other; expected both, or none for a new authority")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"udo development CA {secrets.token_hex(4)}")])
        builder = _builder(name, name, key.public_key(), CA_DAYS)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
        certificate = builder.sign(key, hashes.SHA256())
        replace_file(folder / CA_KEY, _pem(key))
        replace_file(folder / CA, certificate.public_bytes(serialization.Encoding.PEM), mode=0o644)
        return cls(folder, certificate, key)

    def sign(self, name: str, hosts: Sequence[str] = (), days: int = CERTIFICATE_DAYS) -> Tls:
        """Write a new certificate to the folder `name`, in place of a former one. With `hosts` (names, addresses) it is for a host,
        which serves and calls; without, for a client that only calls."""
        if not _NAME.fullmatch(name):
            raise UsageError(f"expected a name of letters, digits, '.', '_' or '-' for the folder of a certificate, got {name!r}")
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
        builder = _builder(subject, self.certificate.subject, key.public_key(), days)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_general(host) for host in hosts]), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        certificate = builder.add_extension(issuer, critical=False).sign(self.key, hashes.SHA256())
        files = Tls.folder(self.folder / name)
        files.ca.parent.mkdir(exist_ok=True, mode=0o700)
        pem = serialization.Encoding.PEM
        replace_file(files.ca, self.certificate.public_bytes(pem), mode=0o644)
        replace_file(files.key, _pem(key))
        replace_file(files.certificate, certificate.public_bytes(pem), mode=0o644)
        return files

    def sign_host(self, names: Sequence[str]) -> Tls:
        """Sign for a host of these names and addresses; the folder is named after the first one."""
        return self.sign(names[0], [*names, *(n for n in _NEAR if n not in names)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    until = now + dt.timedelta(days=days)
    begin = min(now, until) - _CLOCKS_DIFFER
    made = x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number(), begin, until)
    return made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    names = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only")
    allowed = {"key_cert_sign": signs_certificates, "crl_sign": signs_certificates, "digital_signature": not signs_certificates}
    return x509.KeyUsage(**allowed, **dict.fromkeys(names, False))


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not _NAME.fullmatch(host):
        raise UsageError(f"expected a host's name or IP address, got {host!r}")
    return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
