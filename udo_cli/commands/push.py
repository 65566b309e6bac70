"""`udo push`: check, package and upload an operator version."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from udo_cli import base

EXAMPLES = """
udo push fraud
udo push fraud --version 2
udo push fraud --python 3.12 --platform linux_aarch64      for other nodes than this machine
UDO_REGISTRY=https://udo.example.org UDO_TOKEN=... udo push fraud --json
"""


@base.command("push", EXAMPLES)
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option("--version", help="Instead of the version in operator.toml.")
@click.option("--python", help="Python of the nodes, such as 3.12; this one by default.")
@click.option("--platform", help="Platform of the nodes, such as linux_x86_64; this one by default.")
@click.option("--dry-run", is_flag=True, help="Check and package, upload nothing.")
@base.json_option
def command(directory: Path, version: str | None, python: str | None, platform: str | None, dry_run: bool, as_json: bool) -> None:
    """Upload the operator in DIRECTORY as an immutable version.

    Checks operator.toml, resolves its requirements for the nodes' Python, imports it as an instance would, and packs
    reproducible layers: the same files give the same digest. What the registry has is not sent again.
    """
    from udo_cli import output, remote
    from udo_cli.packing import build
    from udo_cli.packing.upload import upload
    from udo_cli.settings import Settings

    settings = Settings()
    target = build.Target.of(python, platform)
    manifest = build.load_manifest(directory, version, target)
    with tempfile.TemporaryDirectory(prefix="udo-push-") as work:
        image = build.build(directory, manifest, target, Path(work), settings.local.dependencies, output.say)
        if not dry_run:
            with remote.registry(settings) as api:
                upload(api, manifest, image, Path(work), output.say)
    layers = [{"kind": la.kind, "digest": la.digest, "size": la.size_bytes} for la in image.layers]
    if as_json:
        output.emit({"name": manifest.name, "version": manifest.version, "digest": image.digest, "layers": layers, "pushed": not dry_run})
        return
    click.echo(f"{manifest.reference} {image.digest}")
    if not dry_run:
        output.say(f"next: udo deploy {manifest.reference}, or udo update {manifest.name} {manifest.version}")
