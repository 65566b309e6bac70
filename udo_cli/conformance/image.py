"""A conformance operator as an image: started as on a node, in the sandbox that a node's process driver would use on this machine.

An operator version, pushed or in an OCI archive or layout, is unpacked. A whole image, without a layer of code, needs a Docker daemon
that has it; a whole image in the registry is refused, since a node starts it as an instance, not as an operator.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from udo_runtime.child.process import Launch

from node_manager.drivers import runtime_base, sandbox, users
from node_manager.drivers.base import Allowance, Inside
from node_manager.images.images import Images, OperatorImage
from node_manager.instances import commands
from udo_cli.conformance.player import Starting
from udo_cli.packing import archive
from udo_cli.packing.image import MANIFEST_LABEL
from udo_cli.packing.layers import Layer
from udo_cli.platform import remote, throwaway
from udo_cli.text import output
from udo_protocol.errors import UsageError
from udo_protocol.formats.manifest import Manifest
from udo_protocol.registry.content import digest_of, parse_json

# The user that a container runs as if this process is root, as on a node.
_UNPRIVILEGED = 65532


def is_image(word: str) -> bool:
    """Whether the word names an image and not a program: NAME@VERSION, a file or folder that cannot be started, or a name with a tag."""
    return shutil.which(word) is None and ("@" in word or ":" in word or Path(word).exists())


@contextmanager
def starting(reference: str) -> Iterator[Starting]:
    """The function that starts the image's operator, valid within the block. UsageError if it does not speak the operator protocol."""
    with throwaway.workspace("udo-conformance-") as name:
        yield _in_sandbox(_unpacked(reference, name), name) if _is_kept(reference) else _in_docker(reference)


def _is_kept(reference: str) -> bool:
    """Whether the image is in the registry or in a file, and not only in the Docker daemon."""
    return "@" in reference or Path(reference).exists()


def _unpacked(reference: str, work: Path) -> OperatorImage:
    """The operator version, unpacked as on a node; UsageError for a whole image."""
    images, layers = work / "images", work / "layers"
    images.mkdir()
    layers.mkdir()
    if not Path(reference).exists():
        operator, version = remote.reference(reference)
        with remote.registry() as api:
            if all(layer["kind"] != "code" for layer in api.version(operator, version)["layers"]):
                raise UsageError(
                    f"{reference} is a whole image, which speaks the queue protocol itself (docs/protocol.md), not the operator protocol: "
                    "expected a version that udo push has packed, or a whole image of the local Docker daemon, by its NAME:TAG"
                )
            return Images(images, api).get(operator, version)
    found = archive.read(reference, layers, packed=False, kinds=True)
    if all(layer.kind != "code" for layer in found.layers):
        raise UsageError(f"{reference} has no layer of code: a whole image is run by a Docker daemon; docker load it, then give its name")
    source = _Archived(found)
    return Images(images, source).get(source.manifest["name"], source.manifest["version"])


class _Archived:
    """An archive as a source of images: node_manager.images.images.Source."""

    def __init__(self, found: archive.Archive) -> None:
        labels = (found.config.get("config") or {}).get("Labels") or {}
        self._layers: dict[str, Layer] = {layer.digest: layer for layer in found.layers}
        self.manifest: dict[str, Any] = parse_json(labels.get(MANIFEST_LABEL, "{}").encode(), MANIFEST_LABEL)
        if not self.manifest.get("name"):
            raise UsageError(f"the image has a layer of code and no label {MANIFEST_LABEL}: expected one that udo push has made")

    def version(self, name: str, ref: str) -> Mapping[str, Any]:
        layers = [{"digest": layer.digest, "size": layer.size_bytes, "kind": layer.kind} for layer in self._layers.values()]
        return {"digest": digest_of(repr(layers).encode()), "manifest": self.manifest, "layers": layers}

    def fetch_blob(self, name: str, digest: str, path: Path) -> None:
        shutil.copyfile(self._layers[digest].path, path)


def _in_sandbox(image: OperatorImage, work: Path) -> Starting:
    manifest = image.manifest
    if not manifest.own_process:
        raise UsageError(
            f"{manifest.reference} runs in the process of its engine, so it does not speak the operator protocol: expected a command, or "
            'isolation = "process" in operator.toml'
        )
    sockets = work / "sockets"
    sockets.mkdir()
    base = runtime_base.build(work / "runtime")
    box, remark = sandbox.find(sockets, base)
    if box is None:
        output.say(f"run without isolation ({remark}); a node that isolates gives it no network and no files but its own")

    def start(directory: str, env: Mapping[str, str]) -> Launch:
        private, before = Path(directory), list[str]()
        inside = Inside(directory, "", directory, user=users.of_this_process())
        python, cwd = None, image.code
        if not manifest.command:
            python, cwd = commands.Python(sys.executable, [str(image.code), str(image.dependencies), str(base)]), private
        if box is not None:
            inside = Inside(directory, "", box.scratch(private)[0], user=box.user)
            for scratch in box.scratch(private):
                Path(scratch).mkdir(exist_ok=True)
            before = sandbox.confining(box, private, cwd, [image.code, image.dependencies], python=python is not None)
        return Launch.of(commands.launch(manifest, str(image.code), directory, before, inside, python), env)

    return start


def _in_docker(reference: str) -> Starting:
    """Start the image by its own ENTRYPOINT and CMD, in a container like those of the Docker driver."""
    with archive.of_daemon(reference) as image:
        config = image.attrs["Config"]
        if MANIFEST_LABEL in (config.get("Labels") or {}):
            raise UsageError(f"{reference} is an operator version that udo push has made: give it as NAME@VERSION, or as an oci-archive")
        if not (config.get("Entrypoint") or config.get("Cmd")):
            raise UsageError(f"{reference} has neither ENTRYPOINT nor CMD: nothing would speak the operator protocol")
    from node_manager.drivers import docker_operator
    from node_manager.drivers.docker_operator import OperatorContainer

    user, group = os.getuid() or _UNPRIVILEGED, os.getgid() or _UNPRIVILEGED

    def start(directory: str, env: Mapping[str, str]) -> Launch:
        if os.getuid() != user:
            os.chown(directory, user, group)
        allowance = Allowance.of(Manifest(name="conformance", version="1", input={"n": "int64"}, output={"n": "int64"}))
        argv = docker_operator.command(OperatorContainer(reference, directory, directory, allowance, f"{user}:{group}"))
        return Launch(tuple(argv), directory, directory, {"HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8", **env})

    return start
