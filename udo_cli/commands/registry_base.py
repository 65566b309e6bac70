"""`udo registry base`: runtime bases, the images below every operator that runs as a container."""

from __future__ import annotations

import click

from udo_cli import base
from udo_cli.base import ReportingGroup

EXAMPLES = """
udo registry base push udo-runtime-python:cp311      an image of the local Docker daemon
udo registry base push runtime.tar                   ... or from docker save, skopeo, buildah
"""


@click.group("base", cls=ReportingGroup, examples=EXAMPLES, context_settings={"max_content_width": 110})
def command() -> None:
    """Publish runtime bases, on which `udo push` puts the layers of operators."""


@command.command("push", examples=EXAMPLES)
@click.argument("source", metavar="REF|FILE|FOLDER")
@click.option("--python", help="The Python in the image, such as 3.11; by default from the image's label dev.udo.python_tag.")
@base.json_option
def push(source: str, python: str | None, as_json: bool) -> None:
    """Publish an image as the base for its runtime, Python and platform; it replaces the former one.

    SOURCE is a docker-archive, an oci-archive, an OCI layout, or an image of the local Docker daemon. Versions that were
    pushed on a former base keep it.
    """

    from udo_cli.packing import archive, bases, build
    from udo_cli.platform import remote, throwaway
    from udo_cli.text import output

    tag = build.Target.of(python, None).python_tag if python else None
    with throwaway.workspace("udo-base-") as work, remote.registry() as api:
        reference, digest = bases.publish(api, archive.read(source, work), tag, output.say)
    if as_json:
        output.emit({"reference": reference, "digest": digest})
    else:
        click.echo(f"{reference} {digest}")
