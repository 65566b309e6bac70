"""`udo app`: applications, deployments named together with an SLA."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from udo_cli import base
from udo_cli.options import completing, controlling

EXAMPLES = """
udo app create taxi parse filter count --response-ms 200 --downtime-percent 0.1
udo app create --file taxi.toml
udo app set taxi --mode auto --setting beta=0.5
udo app ls
udo app show taxi
udo events taxi             what its manager has decided, and why
udo app rm taxi
"""
COLUMNS = ("APPLICATION", "MODE", "RESPONSE MS", "OF", "DOWNTIME %", "OF", "SLA", "DEPLOYMENTS")
PART_COLUMNS = ("DEPLOYMENT", "RESPONSE MS", "FIGURES")
FILE_ENTRIES = ("name", "deployments", "mode", "interval_s", "sla", "settings")
Json = dict[str, Any]


def _wish_options(command: Any) -> Any:
    """Decorator: the options of create and set."""
    for option in (
        click.option("--setting", "settings", multiple=True, metavar="K=V", help="A setting of the manager; may be repeated."),
        click.option("--interval-s", type=click.FloatRange(0.1), help="Seconds between two decisions; 30 by default."),
        click.option("--downtime-percent", type=click.FloatRange(0, 100), help="SLA: downtime within an hour; no limit by default."),
        click.option("--response-ms", type=click.FloatRange(0.001), help="SLA: response time from source to sink; 200 by default."),
        click.option(
            "--mode",
            type=click.Choice(("off", "advise", "auto")),
            help="Do nothing, only record the decisions (the default), or carry out what is granted.",
        ),
    ):
        command = option(command)
    return command


@base.group("app", EXAMPLES)
def command() -> None:
    """Applications: deployments named together in the order of their chain, with a response time and a downtime to keep.

    The nodes' Operator Managers propose steps for the deployments, the application's manager in the registry grants or declines them. See
    docs/applications_sla.md.
    """
    context = click.get_current_context()
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@command.command("create", examples="\n".join(EXAMPLES.strip().splitlines()[:2]))
@click.argument("name", required=False)
@click.argument("deployments", nargs=-1, shell_complete=completing.deployments)
@click.option(
    "--file",
    "path",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="TOML file with name, deployments, mode, interval_s, [sla] response_ms, downtime_percent, and [settings]; options go before it.",
)
@_wish_options
@base.json_option
def create(name: str | None, deployments: tuple[str, ...], path: Path | None, as_json: bool, **given: Any) -> None:
    """Name DEPLOYMENTS together as application NAME, in the order in which events go through them."""
    from udo_cli.platform import remote
    from udo_cli.text import output
    from udo_protocol.errors import UsageError

    wish: Json = _from_file(path) if path else {}
    wish |= _given(given) | ({"name": name} if name else {}) | ({"deployments": list(deployments)} if deployments else {})
    if not wish.get("name") or not wish.get("deployments"):
        raise UsageError("expected a name and at least one deployment, or --file FILE with both")
    with remote.registry() as api:
        found = api.create_application(wish.pop("name"), wish.pop("deployments"), **wish)
    output.emit(found) if as_json else click.echo(_line(found))


@command.command("set", examples="udo app set taxi --mode auto\nudo app set taxi --response-ms 150 --setting token_s=30")
@click.argument("name", shell_complete=completing.applications)
@click.argument("deployments", nargs=-1, shell_complete=completing.deployments)
@_wish_options
@base.json_option
def change(name: str, deployments: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Change what is given of application NAME: its deployments, SLA, mode or settings."""
    from udo_cli.platform import remote
    from udo_cli.text import output
    from udo_protocol.errors import UsageError

    wish = _given(given) | ({"deployments": list(deployments)} if deployments else {})
    if not wish:
        raise UsageError("expected something to change: deployments, --mode, --response-ms, --downtime-percent, --interval-s or --setting")
    with remote.registry() as api:
        found = api.change_application(name, **wish)
    output.emit(found) if as_json else click.echo(_line(found))


@command.command("ls", examples="udo app ls --json")
@base.json_option
def ls(as_json: bool) -> None:
    """List the applications, with their response time and downtime at the last decision."""
    from udo_cli.platform import remote
    from udo_cli.text import output

    with remote.registry() as api:
        found = api.applications()
    if as_json:
        output.emit(found)
    else:
        output.table(COLUMNS, map(_row, found), "no applications; make one with: udo app create NAME DEPLOYMENT...")


@command.command("show", examples="udo app show taxi --json")
@click.argument("name", shell_complete=completing.applications)
@base.json_option
def show(name: str, as_json: bool) -> None:
    """Show application NAME: its SLA, settings, and the response time of each of its deployments at the last decision."""
    from udo_cli.platform import remote
    from udo_cli.text import output

    with remote.registry() as api:
        found = api.application(name)
    if as_json:
        output.emit(found)
        return
    click.echo(_line(found))
    settings = ", ".join(f"{k} {v:g}" for k, v in found["settings"].items())
    click.echo(f"a decision every {found['interval_s']:g} s" + (f", {settings}" if settings else ""))
    now = found["now"]
    if now is None:
        click.echo("no decision yet")
        return
    click.echo(f"at {now['at']}: {_measured(found)}")
    output.table(PART_COLUMNS, ((p["deployment"], _ms(p["response_ms"]), p["missing"] or "there") for p in now["chain"]), "")


@command.command("rm", examples="udo app rm taxi")
@click.argument("name", shell_complete=completing.applications)
@base.json_option
def remove(name: str, as_json: bool) -> None:
    """Remove application NAME and its journal. Its deployments stay, and decide by their own modes again."""
    from udo_cli.platform import remote
    from udo_cli.text import output

    with remote.registry() as api:
        api.remove_application(name)
    output.emit({"removed": name}) if as_json else click.echo(f"{name}: removed; its deployments stay")


def _given(options: Json) -> Json:
    found = {name: value for name, value in options.items() if value is not None and name != "settings"}
    settings = controlling.parsed(options["settings"])
    return found | ({"settings": settings} if settings else {})


def _from_file(path: Path) -> Json:
    """The entries of a TOML file. UsageError names the first unknown entry."""
    import tomllib

    from udo_protocol.errors import UsageError

    try:
        read = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise UsageError(f"{path} cannot be read as TOML: {e}") from e
    sla = read.pop("sla", {})
    unknown = sorted((read.keys() - set(FILE_ENTRIES)) | {f"sla.{k}" for k in sla.keys() - {"response_ms", "downtime_percent"}})
    if unknown:
        there = f"{', '.join(FILE_ENTRIES)}, and in [sla] response_ms, downtime_percent"
        raise UsageError(f"{path}: no entry {unknown[0]!r}; there are {there}")
    return {**read, **sla}


def _line(a: Json) -> str:
    downtime = "" if a["downtime_percent"] is None else f", downtime at most {a['downtime_percent']:g} %"
    return f"{a['name']}: {' → '.join(a['deployments'])}, response at most {a['response_ms']:g} ms{downtime}, mode {a['mode']}"


def _measured(a: Json) -> str:
    now = a["now"]
    kept = {None: "nothing to measure", True: "the SLA is kept", False: "the SLA is NOT kept"}[now["kept"]]
    return f"response {_ms(now['response_ms']) or 'not known'} ms, downtime {now['downtime_percent']:g} % of the last hour: {kept}"


def _row(a: Json) -> tuple[str, ...]:
    now = a["now"] or {"response_ms": None, "downtime_percent": 0.0, "kept": None}
    limit = "" if a["downtime_percent"] is None else f"{a['downtime_percent']:g}"
    kept = {None: "not known", True: "kept", False: "NOT kept"}[now["kept"]]
    figures = (_ms(now["response_ms"]), f"{a['response_ms']:g}", f"{now['downtime_percent']:g}", limit)
    return (a["name"], a["mode"], *figures, kept, " → ".join(a["deployments"]))


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
