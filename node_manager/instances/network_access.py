"""The network endpoints that an operator may have on this node: those that its manifest names and the node allows."""

from __future__ import annotations

from collections.abc import Collection

from node_manager.drivers.base import Capabilities
from udo_protocol.errors import Refused
from udo_protocol.formats.manifest import Manifest


def require_allowed(manifest: Manifest, node: str, allowed: Collection[str], able: Capabilities) -> None:
    """Refused, with the remedy, if the operator asks for an endpoint that it cannot have here."""
    if not manifest.network:
        return
    asks = f"{manifest.reference} requests network access (network in operator.toml)"
    if missing := [e for e in manifest.network if e not in allowed]:
        there = f"allows {', '.join(sorted(allowed))}" if allowed else "allows no operator any network access"
        options = " ".join(f"--allow-network {e}" for e in missing)
        raise Refused(f"{asks}: {', '.join(missing)}. Node {node} {there}; start it with {options} (udo up, udo node), see docs/sandbox.md")
    if able.isolates_network and not able.opens_endpoints:
        raise Refused(f"{asks}, and node {node} cannot give it a part of it: {able.remark or 'its driver gives none'}. See docs/sandbox.md")
