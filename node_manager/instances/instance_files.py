"""Puts files into an instance's private directory: its operator's as hard links, its deployment's as copies.

For drivers whose instances see that directory and not the node's images. An image is never changed: a linked file keeps its owner and mode,
and an instance sees it read-only. A copied file belongs to the directory's owner, as the instance does.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from node_manager.images.images import OperatorImage


def place(image: OperatorImage, directory: Path) -> None:
    """Put `code/` and `deps/` of an image there; on one file system that takes neither the time nor the space of a copy."""
    for source in (image.code, image.dependencies):
        _tree(source, directory / source.name)


def _tree(source: Path, target: Path) -> None:
    target.mkdir()
    target.chmod(0o755)
    with os.scandir(source) as entries:
        for entry in entries:
            to = target / entry.name
            if entry.is_dir(follow_symlinks=False):
                _tree(Path(entry.path), to)
                continue
            try:
                os.link(entry.path, to, follow_symlinks=False)
            except OSError:  # another file system, or one without links
                shutil.copyfile(entry.path, to, follow_symlinks=False)
                if not to.is_symlink():
                    shutil.copymode(entry.path, to)


def put(directory: Path, name: str, content: bytes) -> None:
    """Write a file of the deployment, for the instance alone; `name` is relative and stays inside. It replaces a file of the operator that
    is there, which may be a link to the image's."""
    target, made = directory / name, []
    for parent in reversed(target.relative_to(directory).parents[:-1]):
        if not (directory / parent).exists():
            (directory / parent).mkdir(mode=0o700)
            made.append(directory / parent)
    target.unlink(missing_ok=True)
    target.write_bytes(content)
    target.chmod(0o600)
    give([*made, target], directory)


def give(paths: list[Path], directory: Path) -> None:
    """Give these files to the owner of the directory."""
    owner = directory.stat()
    if owner.st_uid != os.geteuid():
        for path in paths:
            os.chown(path, owner.st_uid, owner.st_gid)
