"""Features shared by all commands: --debug, examples at the end of the help, and errors as one message with an exit code.

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

node_option = click.option(
    "--node", "address", metavar="NODE", help="Node to ask: its name, or its socket on this host; UDO_NODE or the local one by default."
)
nodes_option = click.option(
    "--node", "address", metavar="NODE", help="Ask only this node: its name, or its socket on this host; UDO_NODE by default, else all."
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


def wait_option(text: str, *, least: float = 0, default: float = 120.0) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--wait-s`: seconds."""
    return click.option("--wait-s", type=click.FloatRange(least), default=default, show_default=True, help=text)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")
