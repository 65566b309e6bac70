"""`udo inspect`: one deployment, operator or version in full, as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from udo_cli import base

if TYPE_CHECKING:
    from udo_protocol.registry.api import Registry

EXAMPLES = """
udo inspect fraud            the deployment of that name, else the operator's latest version
udo inspect fraud@2          that operator version: manifest, layers, provenance, signatures, who uses it
"""


@base.command("inspect", EXAMPLES)
@click.argument("reference", metavar="NAME[@VERSION]")
@base.json_option
def command(reference: str, as_json: bool) -> None:
    """Show a deployment, or an operator version, in full as JSON. Of secrets only the names are known.

    `queries` are the slots in use now, on the nodes that can be asked from here: a query's session where it keeps state,
    and how many of its tasks exchange events.
    """
    from udo_cli import output, remote, usage
    from udo_protocol.errors import NotFound

    name, version = remote.reference(reference)
    with remote.registry() as api:
        try:
            found = _version(api, name, version) if "@" in reference else api.deployment(name) | usage.of_deployment(api, name)
        except NotFound:
            if "@" in reference or all(o["name"] != name for o in api.operators()):
                raise
            found = _version(api, name, "latest")
    output.emit(found)


def _version(api: Registry, name: str, ref: str) -> dict[str, Any]:
    """The version, with what is attached to its image and who uses it."""
    from udo_cli import usage
    from udo_cli.packing.provenance import PROVENANCE_TYPE
    from udo_protocol.registry import signing
    from udo_protocol.registry.content import parse_json

    found = api.version(name, ref)
    provenance, signatures = (
        [a.get("annotations") or {} for a in api.referrers(name, found["digest"], kind)]
        for kind in (PROVENANCE_TYPE, signing.ARTIFACT_TYPE)
    )
    return {
        **found,
        "annotations": parse_json(api.manifest(name, found["digest"]), f"manifest of {name}").get("annotations") or {},
        "provenance": (provenance or [{}])[0],
        "signatures": [a.get(signing.KEY) for a in signatures],
        "used_by": usage.of_version(api, name, found["digest"]),
    }
