"""Makes an image of an operator's folder: checks the manifest, resolves dependencies, packs layers. Uploads nothing."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from node_manager.images.unpack import unpack
from udo_cli.packing import image
from udo_cli.packing.archive import Archive
from udo_cli.packing.layers import CODE_ROOT, Layer, files_of, left_out, pack
from udo_cli.packing.requirements import current_target, dependencies_layer
from udo_cli.text import output
from udo_protocol.errors import ManifestError, OperatorError, UsageError
from udo_protocol.formats import manifest as manifests
from udo_protocol.formats import sample_events
from udo_protocol.formats.manifest import Manifest

# Unpacked dependency layers that are kept for the next check: about as many as the operators that a user works on at a time.
UNPACKED_KEPT = 5
# Those that were used within this time stay, too: no command that uses one takes longer.
UNPACKED_UNUSED_S = 24 * 3600


@dataclass(frozen=True)
class Target:
    """The Python and platform an operator is packaged for."""

    python_tag: str
    platform: str

    @classmethod
    def of(cls, python: str | None, platform: str | None) -> Target:
        """The target for a Python version such as "3.12" and a platform such as "linux_x86_64"; None: those of this interpreter."""
        tag, here = current_target()
        if python is not None:
            if not (m := re.fullmatch(r"(\d)\.(\d+)", python)):
                raise UsageError(f"expected a Python version such as 3.12, got {python!r}")
            tag = f"cp{m[1]}{m[2]}"
        return cls(tag, platform or here)

    @property
    def here(self) -> bool:
        """Whether this interpreter can run it."""
        return (self.python_tag, self.platform) == current_target()


def unpacked(layer: Layer | None, cache: Path) -> Path | None:
    """A folder in `cache` with the files of this layer of dependencies; None without a layer."""
    if layer is None:
        return None
    folder = cache / "unpacked" / layer.digest.partition(":")[2]
    if not folder.is_dir():
        folder.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="unpack-") as name:
            files = Path(name) / "files"
            files.mkdir()
            unpack(layer.path, "dependencies", files)
            with suppress(OSError):  # another push has just made it
                files.rename(folder)
    os.utime(folder)
    for old in sorted(folder.parent.iterdir(), key=_used_at)[:-UNPACKED_KEPT]:
        if time.time() - _used_at(old) > UNPACKED_UNUSED_S:
            shutil.rmtree(old, ignore_errors=True)
    return folder


def _used_at(folder: Path) -> float:
    """When the folder was used last; 0 if another command has just removed it."""
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        return 0.0


@dataclass(frozen=True)
class OperatorFolder:
    """The source of an operator: its folder, the manifest in it, and what it is packaged for."""

    directory: Path
    manifest: Manifest
    target: Target

    @property
    def left_out(self) -> list[str]:
        """The files that are not packed."""
        return left_out(self.directory, command=bool(self.manifest.command))

    def dependencies(self, cache: Path, say: Callable[[str], None]) -> Layer | None:
        """The layer of its requirements, whose relative paths start at its folder; None if it has none."""
        wanted, target = self.manifest.requirements, self.target
        return dependencies_layer(wanted, target.python_tag, target.platform, self.directory, cache, say)


def load(directory: Path, version: str | None, target: Target) -> OperatorFolder:
    """The operator in `directory`, with `version` instead of its own, and bound to `target` if it has requirements. ManifestError."""
    return OperatorFolder(directory, _manifest(directory, version, target), target)


def _manifest(directory: Path, version: str | None, target: Target) -> Manifest:
    manifest = manifests.load(directory)
    data = manifest.model_dump() | {"version": _own(directory, version or manifest.version)}
    _require_rehearsal(directory, manifest)
    if manifest.command:
        data["platform"] = target.platform  # programs are built for one platform
        _require_program(directory, manifest, target)
        _require_packed(directory, manifest)
        return manifests.parse(data, str(directory / manifests.FILE_NAME))
    if manifest.requirements or not target.here:
        data |= {"python_tag": target.python_tag, "platform": target.platform}
    if not manifest.entry:
        raise ManifestError(
            f"{directory / manifests.FILE_NAME}: entry is missing: module:attribute of the operator's code. Only a whole image needs none: "
            "udo test DIR --image REF, udo push DIR --image REF (docs/docker.md, Whole images)"
        )
    module = manifest.entry.partition(":")[0].replace(".", "/")
    if not (directory / f"{module}.py").is_file() and not (directory / module / "__init__.py").is_file():
        there = ", ".join(inside for inside, _ in files_of(directory) if inside.endswith(".py")) or "no Python files"
        raise ManifestError(f"{directory / manifests.FILE_NAME}: entry {manifest.entry!r} names the module {module}.py; there are: {there}")
    return manifests.parse(data, str(directory / manifests.FILE_NAME))


def _own(directory: Path, version: str) -> str:
    if version == manifests.LATEST:
        raise ManifestError(f"{directory / manifests.FILE_NAME}: version {version!r} means the one that was pushed last; name this one")
    return version


def _require_program(directory: Path, manifest: Manifest, target: Target) -> None:
    program = manifest.command[0]
    path = directory / program
    if "/" not in program or program.startswith("/"):  # a program of the node
        if target.here and shutil.which(program) is None:
            raise ManifestError(
                f"{directory / manifests.FILE_NAME}: command names {program}, which is no program of this machine: install it, here and on "
                "the nodes (docs/operators.md, Other languages)"
            )
        return
    if not path.is_file() or not os.access(path, os.X_OK):
        raise ManifestError(
            f"{directory / manifests.FILE_NAME}: command names {program}, which is no program in {directory}: build the operator first "
            "(docs/operators.md, Other languages)"
        )


def _require_packed(directory: Path, manifest: Manifest) -> None:
    left = left_out(directory, command=True)
    for word in manifest.command:
        if (directory / word).exists() and (unpacked := [inside for inside in left if word == inside or word.startswith(inside)]):
            raise ManifestError(
                f"{directory / manifests.FILE_NAME}: command names {word}, and {unpacked[0]} is not packed: move it, as to bin/"
            )


def _require_rehearsal(directory: Path, manifest: Manifest) -> None:
    """ManifestError unless the file of events to rehearse with exists and is packed; an error if the events do not fit the input."""
    if not manifest.rehearse:
        return
    path = directory / manifest.rehearse
    if path.is_symlink() or not path.is_file() or manifest.rehearse in left_out(directory, command=bool(manifest.command)):
        raise ManifestError(f"{directory / manifests.FILE_NAME}: rehearse names {manifest.rehearse}, which is no file that is packed")
    sample_events.rehearsed(path.read_bytes(), manifest.input_schema, str(path))


def load_image_manifest(directory: Path, version: str | None, whole: Archive) -> Manifest:
    """The manifest in `directory` for a whole image, from which it takes the platform. UsageError if it cannot run as an operator."""
    run = whole.config.get("config") or {}
    if whole.config.get("os") != "linux":
        raise UsageError(f"operators run on Linux, the image is for {whole.config.get('os', 'an unknown system')}")
    if not (run.get("Entrypoint") or run.get("Cmd")):
        raise UsageError("the image has neither ENTRYPOINT nor CMD: nothing would implement the queue protocol (docs/protocol.md)")
    manifest = manifests.load(directory)
    if manifest.own_process:
        raise UsageError(
            f"{directory / manifests.FILE_NAME}: a whole image starts its own program, which speaks the queue protocol (docs/protocol.md), "
            "not the operator protocol: remove runtime, command and isolation, or push the folder without --image"
        )
    data = manifest.model_dump() | {"platform": image.platform_of(whole.config), "version": _own(directory, version or manifest.version)}
    return manifests.parse(data, str(directory / manifests.FILE_NAME))


@dataclass(frozen=True)
class Packed:
    """An operator's image, and a folder with the files of its dependencies, if it has any."""

    directory: Path  # the source
    manifest: Manifest
    image: image.BuiltImage
    dependencies: Path | None


@dataclass(frozen=True)
class UnpackedOperator:
    """An operator's manifest, the folder of its code, and the folder of its dependencies, if it has any."""

    manifest: Manifest
    code: Path
    dependencies: Path | None


def build(
    folder: OperatorFolder,
    work: Path,
    cache: Path,
    say: Callable[[str], None],
    base: image.BaseImage | None = None,
    *,
    lasting: bool = True,
) -> Packed:
    """Pack the operator; its layers are files in `work` and `cache`. UsageError. Without `lasting` (a trial) the code is not compressed."""
    below, manifest = folder.dependencies(cache, say), folder.manifest
    files = files_of(folder.directory, command=bool(manifest.command))
    code = pack("code", CODE_ROOT, files, work / "code.tar.gz", lasting=lasting)
    # Dependencies first: they change less often, so the layers above them are the ones sent again.
    made = image.assemble(manifest, [*([below] if below else []), code], base)
    return Packed(folder.directory, manifest, made, unpacked(below, cache))


@contextmanager
def unpacked_code(packed: Packed, work: Path) -> Iterator[UnpackedOperator]:
    """The packed operator, its code in a new folder: a node has nothing else of the source. Refused if nodes would refuse to unpack it."""
    (code,) = (layer for layer in packed.image.layers if layer.kind == "code")
    with tempfile.TemporaryDirectory(dir=work, prefix="unpack-") as name:
        unpack(code.path, "code", Path(name))
        yield UnpackedOperator(packed.manifest, Path(name), packed.dependencies)


@contextmanager
def telling_what_was_left_out(folder: OperatorFolder) -> Iterator[None]:
    """Add the files of the folder that were not packed to an OperatorError in the block."""
    try:
        yield
    except OperatorError as e:
        missing = folder.left_out
        hint = f"\nnot packed, and so not on a node: {output.some(missing)}; if it needs one of these, rename it" if missing else ""
        raise OperatorError(f"{e}{hint}") from None
