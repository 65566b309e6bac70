"""`udo inspect`: one deployment, operator or version in full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from udo_cli import base
from udo_cli.options import completing

if TYPE_CHECKING:
    from udo_protocol.registry.api import Registry

EXAMPLES = """
udo inspect fraud            the deployment of that name, else the operator's latest version
udo inspect fraud@2          that operator version: manifest, layers, provenance, signatures, who uses it
"""


@base.command("inspect", EXAMPLES)
@click.argument("reference", metavar="NAME[@VERSION]", shell_complete=completing.everything)
@base.json_option
def command(reference: str, as_json: bool) -> None:
    """Show a deployment or an operator version in full. Of secrets only the names are shown.

    IN USE ON lists the slots that queries use, on nodes that can be asked from here: the session, if the operator keeps state,
    and the number of lanes (tasks that exchange events). KEY GROUPS ON lists which slot has which key groups of an operator that keeps
    state, and the version of that map, which grows with every move (udo move).
    """
    from udo_cli.platform import remote, usage
    from udo_cli.text import inspect_text, output
    from udo_protocol.errors import NotFound

    name, version = remote.reference(reference)
    deployed = "@" not in reference
    with remote.registry() as api:
        try:
            found = api.deployment(name) | usage.of_deployment(api, name) if deployed else _version(api, name, version)
        except NotFound:
            if not deployed or all(o["name"] != name for o in api.operators()):
                raise
            deployed, found = False, _version(api, name, "latest")
    if as_json:
        output.emit(found)
    elif deployed:
        inspect_text.deployment(found)
    else:
        inspect_text.version(found)


def _version(api: Registry, name: str, ref: str) -> dict[str, Any]:
    """The version, with its annotations, provenance, signatures and users."""
    from udo_cli.packing.provenance import PROVENANCE_TYPE
    from udo_cli.platform import usage
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
