"""`udo registry`: a registry in the foreground; `udo registry audit`: who changed what, and when."""

from __future__ import annotations

from dataclasses import replace

import click
from click.core import ParameterSource

from udo_cli import base
from udo_cli.commands import registry_backup, registry_base, registry_key
from udo_cli.options import completing, daemons
from udo_cli.options.typed import grouped

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
@grouped(daemons.RegistryOptions, "wish")
@click.pass_context
def command(ctx: click.Context, wish: daemons.RegistryOptions) -> None:
    """Run a registry in the foreground. It stores operator images, the catalogue and deployments, and controls updates."""
    if ctx.invoked_subcommand:
        return
    from udo_cli.platform import foreground
    from udo_cli.settings import CliSettings

    folder = wish.data or CliSettings().local.registry
    told = replace(wish, data=folder, token_file=wish.token_file or (wish.shared or folder) / "token")
    if ctx.get_parameter_source("database") is ParameterSource.ENVIRONMENT:  # the new process inherits the variable
        told = replace(told, database=None)
    ctx.exit(foreground.run("registry", daemons.arguments(told)))


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
    from udo_cli.platform import remote
    from udo_cli.text import output

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
    from udo_cli.platform import remote, usage
    from udo_cli.text import output
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
    from udo_cli.platform import remote
    from udo_cli.text import output

    with remote.registry() as api:
        removed = api.collect_garbage(unused_s, untagged=untagged)
    if as_json:
        output.emit(removed)
    else:
        click.echo(f"removed {removed['blobs']} blobs and {removed['uploads']} unfinished uploads")
