"""Signatures over operator versions: Ed25519 over a small JSON text that names operator, version and digest.

A signature is an OCI artifact attached to the image's manifest: its layer is the text, its annotations hold the signature
and the key's id. Signing needs the private key, verifying the public one; keys are PEM files.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from udo_protocol.errors import Conflict, NotFound, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

    PrivateKey: TypeAlias = Ed25519PrivateKey
    PublicKey: TypeAlias = Ed25519PublicKey

ARTIFACT_TYPE = "application/vnd.dev.udo.signature.v1+json"
PAYLOAD_TYPE = "application/vnd.dev.udo.signed.v1+json"
SIGNATURE, KEY = "dev.udo.signature", "dev.udo.key"


def new_key(path: Path) -> str:
    """Write a new private key to `path`, readable by its owner only, and the public key to `path`.pub; returns the key's id."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = Ed25519PrivateKey.generate()
    public = public_path(path)
    for target in (path, public):
        if target.exists():
            raise Conflict(f"{target} exists; keys are never overwritten: choose another name, or remove both files")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return key_id(key.public_key())


def public_path(path: Path) -> Path:
    """The path of the public key of a private one."""
    return path.with_name(f"{path.name}.pub")


def key_id(key: PublicKey) -> str:
    """The sha256 of the public key's 32 bytes."""
    return f"sha256:{hashlib.sha256(key.public_bytes_raw()).hexdigest()}"


def load_private(path: Path) -> PrivateKey:
    """The private key in this file; NotFound if there is no file, UsageError if it holds no Ed25519 private key."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except FileNotFoundError:
        raise NotFound(f"there is no key {path}; make one with: udo registry key new {path}") from None
    except (ValueError, TypeError, UnsupportedAlgorithm) as e:
        raise UsageError(f"{path} is not a private key ({e}); expected an Ed25519 key in PEM, as udo registry key new makes it") from e
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"{path} holds a different kind of key; expected an Ed25519 key in PEM, as udo registry key new makes it")
    return key


def load_trusted(directory: Path) -> list[PublicKey]:
    """The public keys `*.pub` in this directory; UsageError if there are none, or if a file holds no Ed25519 public key."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    found: list[PublicKey] = []
    for path in sorted(directory.glob("*.pub")):
        try:
            key = load_pem_public_key(path.read_bytes())
        except (ValueError, UnsupportedAlgorithm) as e:
            raise UsageError(f"{path} is not a public key ({e}); expected an Ed25519 key in PEM, as udo registry key new makes it") from e
        if not isinstance(key, Ed25519PublicKey):
            raise UsageError(f"{path} holds a different kind of key; expected an Ed25519 key in PEM, as udo registry key new makes it")
        found.append(key)
    if not found:
        raise UsageError(
            f"{directory} holds no public key *.pub: no signature could be verified; make a key pair with: udo registry key new NAME"
        )
    return found


def payload(name: str, version: str, digest: str) -> bytes:
    """The text that is signed."""
    return json.dumps({"digest": digest, "name": name, "version": version}, sort_keys=True, separators=(",", ":")).encode()


def sign(key: PrivateKey, name: str, version: str, digest: str) -> tuple[bytes, dict[str, str]]:
    """(signed text, annotations with the signature)."""
    text = payload(name, version, digest)
    return text, {SIGNATURE: base64.b64encode(key.sign(text)).decode(), KEY: key_id(key.public_key())}


def signer(trusted: Iterable[PublicKey], annotations: Mapping[str, object], name: str, version: str, digest: str) -> str | None:
    """The id of the trusted key with which this version was signed, by these annotations; None if there is none."""
    from cryptography.exceptions import InvalidSignature

    try:
        signature = base64.b64decode(str(annotations.get(SIGNATURE, "")), validate=True)
    except (binascii.Error, ValueError):
        return None
    for key in trusted:
        try:
            key.verify(signature, payload(name, version, digest))
        except InvalidSignature:
            continue
        return key_id(key)
    return None
