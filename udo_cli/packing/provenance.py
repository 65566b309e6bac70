"""Provenance of an operator version: who pushed it, when, from which commit, with which tool. Attached to the version as OCI annotations.

Provenance is not part of the image, so that the same files always give the same digest.
"""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from pathlib import Path

from udo_cli.packing.image import BASE_DIGEST, BASE_NAME, BuiltImage

PROVENANCE_TYPE = "application/vnd.dev.udo.provenance.v1+json"
_GIT_TIMEOUT_S = 10


def of(directory: Path, image: BuiltImage, user: str, source: str) -> dict[str, str]:
    """The annotations. `source`: "folder", or the name of the whole image that was pushed."""
    found = {
        "org.opencontainers.image.created": datetime.now(UTC).isoformat(timespec="seconds"),
        "org.opencontainers.image.authors": user,
        "dev.udo.source": source,
        "dev.udo.builder": f"udo-spark {_builder()}",
    }
    if image.base:
        found |= {BASE_NAME: image.base.reference, BASE_DIGEST: image.base.digest}
    if packages := next((la.packages for la in image.layers if la.packages), ""):
        found["dev.udo.packages"] = packages
    return found | _commit(directory)


def _builder() -> str:
    try:
        return package_version("udo-spark")
    except PackageNotFoundError:
        return "unknown"


def _commit(directory: Path) -> dict[str, str]:
    """The commit that is checked out, and whether files of the folder differ from it; empty outside of a git repository."""
    revision = _git(directory, "rev-parse", "HEAD")
    if not revision:
        return {}
    changed = _git(directory, "status", "--porcelain", "--", ".")
    return {"org.opencontainers.image.revision": revision, "dev.udo.modified": "false" if changed == "" else "true"}


def _git(directory: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=directory, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
