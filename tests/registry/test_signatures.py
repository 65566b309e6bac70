"""A registry with trusted keys: an image signed by none of them may be stored, but becomes no operator version."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import bound
from tests.registry.conftest import Image, Running, image, sha
from udo_protocol import errors
from udo_protocol.registry import signing
from udo_protocol.registry.api import Registry

Start = Callable[..., Running]


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    """(a trusted private key, another one that is not trusted); the folder `trusted` beside them holds the public half of the first."""
    (tmp_path / "trusted").mkdir()
    for name in ("mine", "other"):
        signing.new_key(tmp_path / name)
    signing.public_path(tmp_path / "mine").rename(tmp_path / "trusted" / "mine.pub")
    return tmp_path / "mine", tmp_path / "other"


def store(client: Registry, one: Image, tmp_path: Path) -> str:
    """Push the image by digest, without a tag."""
    for blob in one.blobs:
        (tmp_path / "blob").write_bytes(blob)
        client.push_blob(one.name, sha(blob), tmp_path / "blob")
    return client.put_manifest(one.name, sha(one.manifest), one.manifest)


def attach(client: Registry, key: Path, one: Image, digest: str, *, signed: str = "") -> None:
    """Attach a signature by `key` over `signed` (by default the digest) to the image."""
    text, annotations = signing.sign(signing.load_private(key), one.name, one.version, signed or digest)
    client.attach(one.name, digest, len(one.manifest), signing.ARTIFACT_TYPE, annotations, text, signing.PAYLOAD_TYPE)


def test_only_what_a_trusted_key_has_signed_becomes_a_version(start_registry: Start, tmp_path: Path, keys: tuple[Path, Path]) -> None:
    mine, other = keys
    client = start_registry("--trusted-keys", str(tmp_path / "trusted")).client()
    one, another = image("op", "1"), image("op", "2", code="v = 2")
    digest = store(client, one, tmp_path)

    with pytest.raises(errors.SignatureError, match=r"op@1 does not become a version.* 1 trusted keys .*no signature; push with --sign"):
        client.put_manifest("op", "1", one.manifest)
    attach(client, other, one, digest)
    attach(client, mine, one, digest, signed=store(client, another, tmp_path))
    with pytest.raises(errors.SignatureError, match="by none of them or do not fit"):
        client.put_manifest("op", "1", one.manifest)
    assert client.operators() == []
    assert client.manifest("op", digest) == one.manifest  # it is stored all the same

    attach(client, mine, one, digest)
    assert client.put_manifest("op", "1", one.manifest) == digest
    assert [v["version"] for v in client.operators()[0]["versions"]] == ["1"]
    assert client.put_manifest("op", "1", one.manifest) == digest  # a repeated push succeeds
    # Only versions need a signature.
    Image("mirror/op", "copy", one.manifest, one.blobs).push(client, tmp_path)


def test_deleting_a_version_takes_its_signatures_along(start_registry: Start, tmp_path: Path, keys: tuple[Path, Path]) -> None:
    running = start_registry("--trusted-keys", str(tmp_path / "trusted"))
    client, one = running.client(), image("op", "1")
    digest = store(client, one, tmp_path)
    attach(client, keys[0], one, digest)
    client.put_manifest("op", "1", one.manifest)
    assert len(client.referrers("op", digest, signing.ARTIFACT_TYPE)) == 1

    client.delete_version("op", "1")

    assert client.referrers("op", digest) == []
    client.collect_garbage(unused_s=0)
    assert list((running.data / "blobs" / "sha256").iterdir()) == []


def test_a_key_comes_to_be_trusted_without_a_restart(start_registry: Start, tmp_path: Path, keys: tuple[Path, Path]) -> None:
    client, one = start_registry("--trusted-keys", str(tmp_path / "trusted")).client(), image("op", "1")
    attach(client, keys[1], one, store(client, one, tmp_path))
    with pytest.raises(errors.SignatureError):
        client.put_manifest("op", "1", one.manifest)

    signing.public_path(keys[1]).rename(tmp_path / "trusted" / "other.pub")

    client.put_manifest("op", "1", one.manifest)


@pytest.mark.parametrize("content", [None, b"no key", b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"])
def test_a_folder_without_usable_keys_is_refused_at_start(tmp_path: Path, content: bytes | None) -> None:
    (tmp_path / "keys").mkdir()
    if content is not None:
        (tmp_path / "keys" / "a.pub").write_bytes(content)
    command = [sys.executable, "-m", "registry", "--data", str(tmp_path / "data"), "--trusted-keys", str(tmp_path / "keys")]
    failed = subprocess.run(command, capture_output=True, text=True, timeout=bound(60), check=False)
    assert failed.returncode == 2 and "udo registry key new" in failed.stderr


def test_keys_are_the_owners_alone_never_replaced_and_told_apart_from_other_files(tmp_path: Path) -> None:
    key = tmp_path / "k"
    made = signing.new_key(key)
    assert key.stat().st_mode & 0o077 == 0
    assert signing.key_id(signing.load_private(key).public_key()) == made
    with pytest.raises(errors.Conflict, match="never overwritten"):
        signing.new_key(key)
    with pytest.raises(errors.UsageError, match="not a private key"):
        signing.load_private(signing.public_path(key))
    with pytest.raises(errors.NotFound, match="udo registry key new"):
        signing.load_private(tmp_path / "absent")
