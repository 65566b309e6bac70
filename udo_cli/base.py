"""Features shared by all commands: --debug, examples at the end of the help, and errors as one message with an exit code.

Imports click and the error table only, so that `udo --help` stays quick.
"""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from udo_cli.exits import ExitCode, exit_for
from udo_protocol.errors import UdoError, Unavailable, UsageError

node_option = click.option(
    "--node", "address", metavar="NODE", help="Node to ask: its name, or its socket on this host; UDO_NODE or the local one by default."
)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)
_FULL = (errno.ENOSPC, errno.EDQUOT)


def _of_system(error: BaseException) -> BaseException:
    """Turn an error of the operating system about a file into an error that says what to do; other errors stay unchanged."""
    if not isinstance(error, OSError) or error.errno not in _DENIED + _FULL or error.filename is None:
        return error
    from udo_cli.settings import CliSettings

    if error.errno in _FULL:
        return Unavailable(f"{error.filename} cannot be written: the disk is full")
    home = CliSettings().local.path
    ours = str(error.filename).startswith(str(home))
    then = f". It belongs to UDO_HOME ({home}), which must be a directory you can write to" if ours else ""
    return UsageError(f"{error.filename} cannot be opened or created: {error.strerror}{then}")


def report(error: BaseException, *, as_json: bool) -> ExitCode:
    """Print `error` to stderr as one message (with --json one JSON object); returns its exit code."""
    error = _of_system(error)
    known = isinstance(error, UdoError)
    code = exit_for(error) if isinstance(error, UdoError) else ExitCode.INTERNAL
    text = str(error) if known else f"{type(error).__name__}: {error} (unexpected error; run again with --debug and report it)"
    if as_json:
        import json

        wire = error.code if isinstance(error, UdoError) else "internal"
        click.echo(json.dumps({"error": {"code": wire, "message": text, "exit": int(code)}}), err=True)
    else:
        click.echo(f"{click.style('error:', fg='red', bold=True)} {text}", err=True)
    return code


class Reporting(click.Command):
    """A command that turns exceptions into exit codes; `examples` ends its help."""

    def __init__(self, *args: Any, examples: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples
        self.params.append(click.Option(["--debug"], is_flag=True, envvar="UDO_DEBUG", help="Show the traceback of an error."))

    def invoke(self, ctx: click.Context) -> Any:
        # ctx.meta is shared with the commands below: `udo --debug push` and `udo push --debug` are the same.
        debug = ctx.meta["udo.debug"] = bool(ctx.params.pop("debug", False) or ctx.meta.get("udo.debug"))
        as_json = bool(ctx.params.get("as_json"))
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.ClickException, click.Abort):
            raise
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(ExitCode.INTERRUPTED)
        except BrokenPipeError:
            sys.stderr.close()  # the reader of our output has closed it
            ctx.exit(ExitCode.OK)
        except Exception as e:
            if debug:
                traceback.print_exc()
            ctx.exit(report(e, as_json=as_json))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples.strip().splitlines():
                    formatter.write(f"{'':>{formatter.current_indent}}{line.strip()}\n")


class ReportingGroup(Reporting, click.Group):
    """A group with options of its own; its sub-commands are Reporting, too."""

    command_class = Reporting


def command(name: str, examples: str) -> Callable[[Callable[..., Any]], Reporting]:
    """Decorator: a `udo` command whose help ends with `examples`."""
    return click.command(name, cls=Reporting, examples=examples, context_settings={"max_content_width": 110})


def group(name: str, examples: str) -> Callable[[Callable[..., Any]], ReportingGroup]:
    """Decorator: a command that can be used alone or with a sub-command."""
    settings: dict[str, Any] = {"max_content_width": 110}
    return click.group(name, cls=ReportingGroup, examples=examples, invoke_without_command=True, context_settings=settings)


driver_option = click.option(
    "--driver", type=click.Choice(["process", "docker"]), default="process", show_default=True, help="How the node runs operators."
)
sandbox_option = click.option(
    "--sandbox",
    type=click.Choice(["auto", "none"]),
    default="auto",
    show_default=True,
    help="Sandbox of the process driver; auto: if the host allows one (see: udo node capabilities).",
)


def _endpoints(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    for text in given:
        host, port = text.rsplit(":", 1) if ":" in text else ("", "")
        if not host or not port.isdecimal():
            raise click.BadParameter(f"expected HOST:PORT, as in operator.toml, got {text!r}")
    return given


allow_network_option = click.option(
    "--allow-network",
    multiple=True,
    callback=_endpoints,
    metavar="HOST:PORT",
    help="Endpoint that operators may reach if their operator.toml requests it (network); may be repeated. None by default.",
)
command_image_option = click.option(
    "--command-image", default="", metavar="IMAGE", help="Docker driver: image in which commands run that are not statically linked."
)
tls_option = click.option(
    "--tls",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="FOLDER",
    help="Folder of certificates: ca.crt, tls.crt and tls.key (see: udo certs). Without it other hosts cannot connect.",
)


def wait_option(text: str, *, least: float = 0, default: float = 120.0) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--wait-s`: seconds."""
    return click.option("--wait-s", type=click.FloatRange(least), default=default, show_default=True, help=text)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")
cut_state_option = click.option(
    "--cut-state",
    is_flag=True,
    help="If the state server's file has unreadable bytes, discard the keyed state written after them; a copy of the file is kept.",
)


def metrics_options(f: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: the options for the address of a node's Prometheus endpoint."""
    host = "Address on which the node's Prometheus endpoint listens; with --tls also 0.0.0.0, all addresses of the host."
    f = click.option("--metrics-host", default="127.0.0.1", show_default=True, help=host)(f)
    return click.option(
        "--metrics-port", type=click.IntRange(0, 65535), default=0, help="Port of the Prometheus endpoint; 0: any free port."
    )(f)
