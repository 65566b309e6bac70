"""Images on a node: each is verified, unpacked safely and only once, or refused by name if it does not fit the node."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from node_manager.config import InstanceConfig
from node_manager.drivers import runtime_base
from node_manager.images import listing
from node_manager.images.images import Images, OperatorImage
from node_manager.instances import instance_files
from udo_protocol.errors import OperatorError, ProtocolError, Unavailable, UsageError
from udo_protocol.formats.manifest import Manifest

MANIFEST = Manifest(name="t", version="1", entry="op:run", input={"a": "int64"}, output={"b": "int64"})


def layer(path: Path, members: Mapping[str, bytes | tarfile.TarInfo]) -> Path:
    """Write a gzipped tar with these files, or these entries."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.name = name
            data = content if isinstance(content, bytes) else b""
            if isinstance(content, bytes):
                info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


class Source:
    """A registry with one version."""

    def __init__(self, directory: Path, **manifest: Any) -> None:
        self.blob = layer(directory / "layer.tar.gz", {"opt/udo/code/op.py": b"x = 1\n"}).read_bytes()
        self.digest, self.fetched = "sha256:" + hashlib.sha256(self.blob).hexdigest(), 0
        self.manifest = MANIFEST.model_copy(update=manifest)
        self.kinds: tuple[str, ...] = ("code",)

    def version(self, name: str, ref: str) -> Mapping[str, Any]:
        layers = [{"digest": self.digest, "size": len(self.blob), "kind": kind} for kind in self.kinds]
        return {"name": name, "version": "1", "digest": "sha256:" + "a" * 64, "manifest": self.manifest.model_dump(), "layers": layers}

    def fetch_blob(self, name: str, digest: str, path: Path) -> None:
        self.fetched += 1
        path.write_bytes(self.blob)


def test_an_image_is_pulled_once_and_found_again_after_a_restart(tmp_path: Path) -> None:
    source, store = Source(tmp_path), tmp_path / "images"
    store.mkdir()

    first = Images(store, source).get("t", "1")
    again = Images(store).get("t", digest=first.digest)

    assert (first.code / "op.py").read_text() == "x = 1\n"
    assert again.manifest == MANIFEST
    assert source.fetched == 1
    assert [p.name for p in store.iterdir()] == ["sha256-" + "a" * 64]


def test_the_digest_of_another_operators_image_is_not_taken_for_one_of_this_operator(tmp_path: Path) -> None:
    store, source = tmp_path / "images", Source(tmp_path)
    store.mkdir()
    other = Images(store, source).get("t", "1")
    with pytest.raises(Unavailable, match=f"operator fraud@{other.digest} is not on this node"):
        Images(store).get("fraud", digest=other.digest)


def spoilt(image: OperatorImage, how: str) -> None:
    file = image.code / "op.py"
    match how:
        case "gone":
            file.unlink()
        case "shorter":
            file.write_text("x")
        case "other bytes":
            before = file.stat()
            file.write_text("x = 7\n")
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        case "other bytes, later":
            file.write_text("x = 7\n")
        case "folder gone":
            shutil.rmtree(image.code)
        case "list":
            (image.directory / "files.json").write_text("{")


@pytest.mark.parametrize("how", ["gone", "shorter", "other bytes", "folder gone", "list"])
def test_what_is_damaged_of_an_image_on_disk_is_fetched_again_before_it_is_used(tmp_path: Path, how: str) -> None:
    source, store = Source(tmp_path), tmp_path / "images"
    store.mkdir()
    spoilt(Images(store, source).get("t", "1"), how)
    images = Images(store, source)  # as after a restart of the node manager
    images.mend(image := images.get("t", digest="sha256:" + "a" * 64))
    assert ((image.code / "op.py").read_text(), source.fetched) == ("x = 1\n", 2)
    images.mend(image)
    assert source.fetched == 2 and [p.name for p in store.iterdir()] == ["sha256-" + "a" * 64]


@pytest.mark.parametrize("how", ["gone", "shorter", "other bytes, later"])
def test_what_is_damaged_between_two_uses_is_seen_too(tmp_path: Path, how: str) -> None:
    source, store = Source(tmp_path), tmp_path / "images"
    store.mkdir()
    images = Images(store, source)
    images.mend(image := images.get("t", "1"))
    (image.code / "__pycache__").mkdir()
    (image.code / "__pycache__" / "op.pyc").write_bytes(b"what came later does not count")
    os.utime(image.code / "op.py")
    images.mend(image)
    assert source.fetched == 1
    spoilt(image, how)
    images.mend(image)
    assert ((image.code / "op.py").read_text(), source.fetched) == ("x = 1\n", 2)


def test_a_damaged_image_that_cannot_be_fetched_again_is_told_with_the_file(tmp_path: Path) -> None:
    source, store = Source(tmp_path), tmp_path / "images"
    store.mkdir()
    spoilt(image := Images(store, source).get("t", "1"), "gone")
    with pytest.raises(OperatorError, match=r"t@sha256:a+ is damaged on this node .*code/op.py is gone.*--registry URL"):
        Images(store).mend(image)
    source.blob = b""
    with pytest.raises(OperatorError, match=r"op.py is gone.*cannot be fetched again: the registry sent different content"):
        Images(store, source).mend(image)


@pytest.mark.parametrize("name", ["manifest.json", "layers.json"])
def test_an_image_whose_description_cannot_be_read_is_as_if_it_were_not_there(tmp_path: Path, name: str) -> None:
    source, store = Source(tmp_path), tmp_path / "images"
    store.mkdir()
    image = Images(store, source).get("t", "1")
    (image.directory / name).write_text("{")
    assert Images(store, source).get("t", digest=image.digest).manifest == MANIFEST
    assert source.fetched == 2


def test_a_blob_with_another_digest_is_refused_and_nothing_is_kept(tmp_path: Path) -> None:
    source, store = Source(tmp_path), tmp_path / "images"
    store.mkdir()
    source.blob = layer(tmp_path / "other.tar.gz", {"opt/udo/code/op.py": b"x = 2\n"}).read_bytes()

    with pytest.raises(ProtocolError, match="expected sha256:.*, got sha256:"):
        Images(store, source).get("t", "1")

    assert list(store.iterdir()) == []


@pytest.mark.parametrize(("field", "value"), [("python_tag", "cp27"), ("platform", "linux_vax"), ("platform", "win_amd64")])
def test_another_python_or_platform_is_refused_before_anything_is_fetched(tmp_path: Path, field: str, value: str) -> None:
    source = Source(tmp_path, **{field: value})

    with pytest.raises(OperatorError, match=f"t@1 was packaged for .*{value}.*this node runs"):
        Images(tmp_path, source).get("t", "1")

    assert source.fetched == 0


def test_a_whole_image_without_our_code_layer_needs_a_driver_that_runs_images(tmp_path: Path) -> None:
    source = Source(tmp_path, python_tag="cp27")  # a whole image has its own interpreter, which need not fit the node's
    source.kinds = ("base",)
    stores = [tmp_path / "process", tmp_path / "docker"]
    for store in stores:
        store.mkdir()

    with pytest.raises(OperatorError, match=r"t@1 .*cp27"):
        Images(stores[0], source).get("t", "1")
    source.manifest = MANIFEST
    with pytest.raises(OperatorError, match=r"t@1 is a whole image .*--driver docker, or push the operator's folder"):
        Images(stores[0], source).get("t", "1")

    source.manifest = MANIFEST.model_copy(update={"python_tag": "cp27"})
    Images(stores[1], source, whole=True).get("t", "1")
    image = Images(stores[1], whole=True).get("t", "1")  # from the disk
    assert (image.has_base, image.has_code, image.reference) == (True, False, f"t@{image.digest}")
    assert source.fetched == 0


def test_without_a_registry_an_unknown_image_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="--registry URL"):
        Images(tmp_path).get("t", "1")
    with pytest.raises(UsageError, match="digest like sha256"):
        Images(tmp_path).get("t", digest="../../etc")


def test_the_runtime_base_links_only_what_an_operator_may_see(tmp_path: Path) -> None:
    base = runtime_base.build(tmp_path / "base")
    runtime_base.build(base)

    assert sorted(p.name for p in base.iterdir()) == ["google", "msgpack", "pyarrow", "udo_protocol", "udo_runtime"]
    assert runtime_base.bootstrap().is_file()


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "log", ""])
def test_a_deployments_files_stay_inside_the_instances_directory(path: str) -> None:
    with pytest.raises(UsageError, match="relative path"):
        InstanceConfig.parse({"files": {path: ""}})


def test_a_deployments_file_replaces_the_operators_in_the_instance_and_the_image_stays_as_it_is(tmp_path: Path) -> None:
    """As for an instance that was started for its operator, whose code is there already."""
    store, directory = tmp_path / "images", tmp_path / "instance"
    store.mkdir()
    directory.mkdir()
    image = Images(store, Source(tmp_path)).get("t", "1")
    instance_files.place(image, directory)
    instance_files.put(directory, "code/op.py", b"x = 2\n")
    assert (directory / "code" / "op.py").read_text() == "x = 2\n"
    assert listing.damage(image.directory, contents=True) == ""


def test_of_unused_images_the_latest_are_kept_and_the_others_named_for_the_driver_to_forget(tmp_path: Path) -> None:
    for age, letter in enumerate("abc"):
        path = tmp_path / f"sha256-{letter * 64}"
        path.mkdir()
        (path / "manifest.json").write_text(MANIFEST.model_dump_json())
        os.utime(path, (1000 - age, 1000 - age))

    removed = Images(tmp_path).prune({"sha256:" + "c" * 64}, kept=1)

    assert removed == ["t@sha256:" + "b" * 64]
    assert sorted(p.name[7] for p in tmp_path.iterdir()) == ["a", "c"]
