"""`udo certs`: certificates for development, signed by an authority of your own."""

from __future__ import annotations

from pathlib import Path

import click

from udo_cli import base

EXAMPLES = """
udo certs certs --host 10.0.0.2,node2.example.org --host 10.0.0.3 --client laptop
udo certs certs --host localhost && udo up --tls certs/localhost
"""


@base.command("certs", EXAMPLES)
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME[,NAME...]",
    help="A host, by all names and addresses that others use for it; the first one names its folder. May be repeated.",
)
@click.option("--client", "clients", multiple=True, metavar="NAME", help="A client: it calls, and cannot serve. May be repeated.")
@base.json_option
def command(folder: Path, hosts: tuple[str, ...], clients: tuple[str, ...], as_json: bool) -> None:
    """Make certificates for development: an authority in FOLDER, unless there is one, and a folder for each host and client.

    A host's folder (ca.crt, tls.crt, tls.key) is for --tls of `udo up`, `udo node` and `udo registry`, UDO_TLS and spark.udo.tls.
    The same host again gets a new certificate, which is used without a restart. Keep FOLDER/ca.key secret: who has it can sign.
    """
    from udo_cli.platform.authority import Authority
    from udo_cli.text import output
    from udo_protocol.errors import UsageError

    named = [[name.strip() for name in host.split(",") if name.strip()] for host in hosts]
    if not all(named) or not (hosts or clients):
        raise UsageError("expected at least one --host NAME[,NAME...] or --client NAME")
    authority = Authority.of(folder.absolute())
    made = [authority.sign_host(names) for names in named] + [authority.sign(client) for client in clients]
    folders = [str(tls.ca.parent) for tls in made]
    if as_json:
        output.emit({"ca": str(authority.folder / "ca.crt"), "folders": folders})
    else:
        click.echo("\n".join(folders))
        output.say("copy each folder to its host; see docs/executors.md")
