"""Brings the demo's operators onto a fresh platform: push, deploy, wait until they answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from udo_cli.packing import bases, build
from udo_cli.packing.upload import upload
from udo_cli.platform import remote, throwaway
from udo_protocol.errors import NotFound
from udo_protocol.registry.api import Registry

ANSWERING_TIMEOUT_S = 60.0


def examples() -> Path:
    """The folder of the example operators: beside the packages in a checkout, inside this package when installed."""
    package = Path(__file__).parent.parent
    for folder in (package / "_examples", package.parent / "examples" / "operators"):
        if folder.is_dir():
            return folder
    raise NotFound(f"the example operators are missing from {package / '_examples'}; install udo-spark again")


def push(api: Registry, directory: Path, cache: Path, version: str | None = None) -> str:
    """Push an operator, with `version` in place of its own; return its reference `name@version`."""
    target = build.Target.of(None, None)
    folder = build.load(directory, version, target)
    with throwaway.workspace("udo-push-") as work:
        base = bases.choose(api, "python", target, None, _silent)
        upload(api, folder.manifest, build.build(folder, work, cache, _silent, base).image, _silent)
    return folder.manifest.reference


def deploy(api: Registry, operator: str, version: str) -> None:
    """Deploy under the operator's own name and wait until it answers."""
    api.deploy(operator, operator, version)
    remote.await_answering(api, operator, ANSWERING_TIMEOUT_S, _silent)


def _silent(_: str) -> None:
    """Drop progress messages: the demo reports its own progress."""


def prepare(api: Registry, cache: Path, say: Callable[[str], None]) -> None:
    """Push forward@1, fraud@1 and fraud@2; deploy the first two."""
    for example in ("forward", "fraud_v1", "fraud_v2"):
        say(f"pushed {push(api, examples() / example, cache)}")
    for operator in ("forward", "fraud"):
        deploy(api, operator, "1")
        say(f"deployed {operator}@1")
