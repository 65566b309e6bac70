"""`udo registry`: a registry in the foreground; `udo registry audit`: who changed what, and when."""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource

from udo_cli import base, completing
from udo_cli.commands import registry_backup, registry_base, registry_key

EXAMPLES = """
udo registry --data /var/lib/udo --listen 10.0.0.2:5000 --tls /etc/udo/tls
udo registry --listen unix:/run/udo/registry.sock
udo registry --data /var/lib/udo --trusted-keys /etc/udo/keys
udo registry --data /var/lib/udo --database postgresql+psycopg://host/udo --shared /mnt/udo
udo registry audit --deployment fraud
udo registry base push runtime.tar
udo registry key new release.key
udo registry backup registry.tar
"""


@base.group("registry", EXAMPLES)
@click.option(
    "--data", type=click.Path(path_type=Path, file_okay=False), help="Blobs, database, token, address; UDO_HOME/registry by default."
)
@click.option(
    "--listen",
    default="127.0.0.1:0",
    show_default=True,
    metavar="HOST:PORT|unix:PATH",
    help="Address on which it listens; port 0: any free port, which later starts use again.",
)
@click.option(
    "--token-file", type=click.Path(path_type=Path, dir_okay=False), help="The write token; SHARED/token by default, made if absent."
)
@click.option(
    "--database",
    metavar="URL",
    help="SQLAlchemy URL; SQLite in DATA by default. May hold a password: prefer UDO_DATABASE.",
    envvar="UDO_DATABASE",
)
@click.option(
    "--shared",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of images and token that several processes of one PostgreSQL database have in common; DATA by default.",
)
@click.option(
    "--trusted-keys",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Folder of public keys *.pub: only versions signed by one of them are accepted.",
)
@base.tls_option
@click.pass_context
def command(
    ctx: click.Context,
    data: Path | None,
    listen: str,
    token_file: Path | None,
    database: str | None,
    shared: Path | None,
    trusted_keys: Path | None,
    tls: Path | None,
) -> None:
    """Run a registry in the foreground. It stores operator images, the catalogue and deployments, and controls updates."""
    if ctx.invoked_subcommand:
        return
    from udo_cli import foreground
    from udo_cli.settings import CliSettings

    folder = data or CliSettings().local.registry
    arguments = ["--data", str(folder), "--listen", listen, "--token-file", str(token_file or (shared or folder) / "token")]
    arguments += ["--shared", str(shared)] if shared else []
    if database and ctx.get_parameter_source("database") is not ParameterSource.ENVIRONMENT:  # the new process inherits the variable
        arguments += ["--database", database]
    arguments += ["--trusted-keys", str(trusted_keys.absolute())] if trusted_keys else []
    arguments += ["--tls", str(tls.absolute())] if tls else []
    ctx.exit(foreground.run("registry", arguments))


command.add_command(registry_backup.backup)
command.add_command(registry_backup.restore)
command.add_command(registry_base.command)
command.add_command(registry_key.command)


@command.command("audit", examples="udo registry audit --deployment fraud --limit 10\nudo registry audit --json")
@click.option("--deployment", help="Only changes of this deployment.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True)
@base.json_option
def audit(deployment: str | None, limit: int, as_json: bool) -> None:
    """Show who changed what, when, from which digest to which; latest first."""
    from udo_cli import output, remote

    with remote.registry() as api:
        entries = api.audit(deployment, limit)
    if as_json:
        output.emit(entries)
        return
    rows = [
        (
            e["at"],
            e["who"],
            e["address"],
            e["action"],
            e["deployment"],
            output.short(e["from_digest"]),
            output.short(e["to_digest"]),
            e["detail"],
        )
        for e in entries
    ]
    output.table(("AT", "WHO", "FROM", "ACTION", "DEPLOYMENT", "OLD", "NEW", "DETAIL"), rows, "nothing has been changed yet")


@command.command(
    "delete", examples="udo registry delete fraud@1\nudo registry gc          frees the space; happens automatically a day later"
)
@click.argument("reference", metavar="NAME@VERSION", shell_complete=completing.operators)
@click.option("--force", is_flag=True, help="Also a version that a rollback of a deployment would lead to.")
@base.json_option
def delete(reference: str, force: bool, as_json: bool) -> None:
    """Delete an operator version and its signatures.

    Refused while a deployment uses it or would go back to it, or a query on a node of this host uses it.
    """
    from udo_cli import output, remote, usage
    from udo_protocol.errors import Conflict, UsageError

    name, version = remote.reference(reference)
    if "@" not in reference:
        raise UsageError(f"expected NAME@VERSION, got {reference!r}; versions are listed by: udo ls operators")
    with remote.registry() as api:
        digest = api.version(name, version)["digest"]
        if queries := usage.of_version(api, name, digest)["queries"]:
            where = ", ".join(f"{q['deployment']} on node {q['node']} ({q['lanes']} lanes, {len(q['sessions'])} sessions)" for q in queries)
            raise Conflict(f"{reference} is in use by queries that ask for this version: {where}; stop them first")
        api.delete_version(name, digest, force=force)
    if as_json:
        output.emit({"deleted": f"{name}@{version}", "digest": digest})
    else:
        click.echo(f"{name}@{version}: deleted")


@command.command("gc", examples="udo registry gc\nudo registry gc --unused-s 3600 --untagged")
@click.option("--unused-s", type=click.FloatRange(0), help="Only what has been unused for this long; a day by default.")
@click.option("--untagged", is_flag=True, help="Also images without a tag that nothing refers to.")
@base.json_option
def gc(unused_s: float | None, untagged: bool, as_json: bool) -> None:
    """Remove layers that no image needs, and unfinished uploads. The registry does so itself every few minutes."""
    from udo_cli import output, remote

    with remote.registry() as api:
        removed = api.collect_garbage(unused_s, untagged=untagged)
    if as_json:
        output.emit(removed)
    else:
        click.echo(f"removed {removed['blobs']} blobs and {removed['uploads']} unfinished uploads")
