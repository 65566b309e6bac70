"""Hostile versions pushed to the registry and deployed, all at once, on a serving platform: each must be refused, and delay nobody else.

A node unpacks layers itself, whatever its driver, so that no missing capability excuses a failure here.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from pathlib import Path

from benchmarks.harness.bringup import Platform, wait_until
from benchmarks.harness.rules import InvalidRun
from benchmarks.verification.hostile_layers import HOSTILE
from udo_cli.packing.image import assemble
from udo_cli.packing.layers import Layer
from udo_cli.packing.upload import upload
from udo_protocol.formats.manifest import Manifest
from udo_protocol.lifecycle import REFUSED
from udo_protocol.registry.api import Registry

OPERATOR = "pushed"
# The most time until all of them are refused, on a busy machine; the slowest takes two seconds of processor time.
REFUSED_S = 90.0
WORDS = {f"layer_{name}": what for name, (what, _, _) in HOSTILE.items()}


def carry_out(platform: Platform, victim: str) -> dict[str, str]:
    """Push and deploy the hostile versions, and update the victim meanwhile; return each attack's result, '' if refused as expected."""
    with platform.registry() as registry, tempfile.TemporaryDirectory(prefix="udo-pushed-") as work:
        names = {name: f"layer-{name.replace('_', '-')}" for name in HOSTILE}
        for number, name in enumerate(HOSTILE, 1):
            _push(registry, str(number), HOSTILE[name][1](), Path(work) / "layer")
        platform.push(victim, "pushed-meanwhile")
        for number, deployment in enumerate(names.values(), 1):
            registry.deploy(deployment, OPERATOR, str(number))
        last = list(registry.update(victim, "pushed-meanwhile"))[-1]
        harm = "" if last["phase"] == "done" else f"an update beside it ended as {last['phase']}: {last['detail']}"

        def settled() -> bool:
            return all(registry.deployment(d)["nodes"] for d in names.values())

        with contextlib.suppress(InvalidRun):  # _judge finds the attack that was not refused
            wait_until(settled, REFUSED_S, "all hostile versions to be reported")
        found = {f"layer_{name}": _judge(registry, names[name], HOSTILE[name][2]) or harm for name in HOSTILE}
        for deployment in names.values():
            registry.undeploy(deployment)
    left = [str(p) for p in (platform.home.path).rglob("*") if p.name in ("written", "canary") or p.name.startswith(".pull-")]
    return {name: why or (f"left behind: {left[:3]}" if left else "") for name, why in found.items()}


def _push(registry: Registry, version: str, blob: bytes, path: Path) -> None:
    manifest = Manifest(name=OPERATOR, version=version, entry="op:run", input={"a": "int64"}, output={"b": "int64"})
    path.write_bytes(blob)
    digest = f"sha256:{hashlib.sha256(blob).hexdigest()}"
    upload(registry, manifest, assemble(manifest, [Layer(path, "code", digest, digest, len(blob))]), lambda _: None)


def _judge(registry: Registry, deployment: str, why: str) -> str:
    for node in registry.deployment(deployment)["nodes"]:
        if node["state"] != REFUSED or why not in node["detail"]:
            return f"{node['state']}: {node['detail'][:200]}"
        return ""
    return "nothing was reported"
