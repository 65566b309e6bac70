"""What every command shares: --debug, examples at the end of the help, and errors as one message with an exit code.

Imports click and the error table only, so that `udo --help` stays quick.
"""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Callable
from typing import Any

import click

from udo_cli.exits import ExitCode, exit_for
from udo_protocol.errors import UdoError, Unavailable, UsageError

_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)
_FULL = (errno.ENOSPC, errno.EDQUOT)


def _of_system(error: BaseException) -> BaseException:
    """A file that the system does not let us have, as an error that says what to do; anything else as it is."""
    if not isinstance(error, OSError) or error.errno not in _DENIED + _FULL or error.filename is None:
        return error
    from udo_cli.settings import CliSettings

    if error.errno in _FULL:
        return Unavailable(f"{error.filename} cannot be written: the disk is full")
    home = CliSettings().local.path
    ours = str(error.filename).startswith(str(home))
    then = f". It belongs to UDO_HOME ({home}), which must be a directory you can write to" if ours else ""
    return UsageError(f"{error.filename} cannot be opened or made: {error.strerror}{then}")


def report(error: BaseException, *, as_json: bool) -> ExitCode:
    """Print `error` as one message (one JSON object with --json) on stderr; the exit code it stands for."""
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
    """A group of its own options and sub-commands, which report like commands do."""

    command_class = Reporting


def command(name: str, examples: str) -> Callable[[Callable[..., Any]], Reporting]:
    """Decorator: a `udo` command whose help ends with `examples`."""
    return click.command(name, cls=Reporting, examples=examples, context_settings={"max_content_width": 110})


def group(name: str, examples: str) -> Callable[[Callable[..., Any]], ReportingGroup]:
    """Decorator: a command that may stand alone or be followed by a sub-command."""
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
    help="Of the process driver: auto, where the host allows one (see: udo node capabilities).",
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
    help="Operators whose operator.toml asks for it (network) may reach this; may be repeated. Refused by default.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")
cut_state_option = click.option(
    "--cut-state", is_flag=True, help="Discard keyed state written after unreadable bytes of the state server's file; a copy is kept."
)


def metrics_options(f: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: where a node's Prometheus endpoint listens."""
    host = "Address the node's Prometheus endpoint listens on; 0.0.0.0: all of the host's."
    f = click.option("--metrics-host", default="127.0.0.1", show_default=True, help=host)(f)
    return click.option("--metrics-port", type=click.IntRange(0, 65535), default=0, help="Its port; 0: any free one.")(f)
