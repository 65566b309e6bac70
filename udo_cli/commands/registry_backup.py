"""`udo registry backup` and `restore`: all data of a registry in one file, and back."""

from __future__ import annotations

from pathlib import Path

import click

from udo_cli import base

RESTORE = """
udo registry restore registry.tar              into a new registry
udo registry restore registry.tar --replace    instead of all that this one has
"""
_FILE = click.Path(path_type=Path, dir_okay=False)


@base.command("backup", "udo registry backup registry.tar\nudo registry backup registry.tar --json")
@click.argument("file", type=_FILE)
@base.json_option
def backup(file: Path, as_json: bool) -> None:
    """Write a backup of the registry to FILE while it serves: images, versions, deployments with their secrets, updates, audit trail.

    FILE must not exist, and is readable by you only. Tokens and trusted keys are not in it.
    """
    from udo_cli.platform import remote
    from udo_cli.text import output
    from udo_protocol.errors import UsageError

    if file.exists():
        raise UsageError(f"{file} exists: name a new file, since this one may be the only backup")
    with remote.registry() as api:
        size = api.backup(file)
    if as_json:
        output.emit({"file": str(file), "bytes": size})
    else:
        click.echo(f"{file}: {size} bytes. It holds the secrets of deployments: keep it as you keep those")


@base.command("restore", RESTORE)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--replace", is_flag=True, help="Also if the registry is not empty: what it has is forgotten.")
@base.json_option
def restore(file: Path, replace: bool, as_json: bool) -> None:
    """Put a backup into the registry in use, which may have another database than the one it was made of.

    Nothing changes if FILE is not whole, or if the registry is not empty (without --replace).
    """
    from udo_cli.platform import remote
    from udo_cli.text import output

    with remote.registry() as api:
        done = api.restore(file, replace=replace)
    if as_json:
        output.emit(done)
    else:
        click.echo(f"restored {done['rows']} rows and {done['blobs']} files; registry {done['was']} is registry {done['registry']} now")
