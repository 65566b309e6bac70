"""Options that configure a deployment: --env K=V, --secret K, --file PATH[:NAME]. A secret's value is never an argument."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Any

import click

from udo_protocol.errors import NotFound, UsageError
from udo_protocol.limits import MOST_BACKOFF_US, MOST_RETRIES
from udo_protocol.state.dead_letters import FAIL, POLICIES

_KEY = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
# Files travel inside the deployment's JSON; put models into the operator's folder.
FILES_BYTES = 10 << 20


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: the three options."""
    command = click.option("--file", "files", multiple=True, metavar="PATH[:NAME]", help="Place a file in the operator's folder.")(command)
    command = click.option(
        "--secret",
        "secrets",
        multiple=True,
        metavar="K",
        help="Like --env, but the value is read from this environment, a prompt or a line of stdin.",
    )(command)
    return click.option("--env", "env", multiple=True, metavar="K=V", help="An environment variable of the operator.")(command)


def policy_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: the options for events that the operator fails on."""
    for option in (
        click.option("--dead-letter-mb", type=click.IntRange(1), help="Dead letters kept per node, in MiB; 64 by default."),
        click.option(
            "--dead-letters", type=click.IntRange(1), help="Dead letters kept per node; 10000 by default. Beyond it the query fails."
        ),
        click.option(
            "--retries",
            type=click.IntRange(0, MOST_RETRIES),
            default=0,
            show_default=True,
            help="How often a batch that failed is retried before --on-error applies.",
        ),
        click.option(
            "--on-error",
            type=click.Choice(POLICIES),
            default=FAIL,
            show_default=True,
            help="What happens to events that it fails on: fail the query, or keep them as dead letters (udo dead).",
        ),
    ):
        command = option(command)
    return command


def polling_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: the option for the linear back-off before a reader sleeps."""
    return click.option(
        "--poll-us",
        type=click.IntRange(0, MOST_BACKOFF_US),
        default=0,
        show_default=True,
        help="Poll an empty queue after 20, 40 ... up to this many µs before sleeping: trades CPU time for latency.",
    )(command)


def policy_limits(on_error: str, retries: int, dead_letters: int | None, dead_letter_mb: int | None) -> dict[str, float]:
    """The deployment's limits according to these options. UsageError if they contradict each other."""
    if on_error == FAIL and (dead_letters or dead_letter_mb):
        raise UsageError("--dead-letters and --dead-letter-mb say how many dead letters are kept: they need --on-error dead-letter")
    given = {"retries": retries, "dead_letters": dead_letters, "dead_letter_bytes": (dead_letter_mb or 0) << 20}
    return {name: value for name, value in given.items() if value}


def environment(pairs: Iterable[str]) -> dict[str, str]:
    """{K: V} from K=V texts. UsageError for a text of another form."""
    found = {}
    for pair in pairs:
        key, sep, value = pair.partition("=")
        if not sep or not _KEY.match(key):
            raise UsageError(f"--env expects K=V with a variable's name before '=', got {pair!r}")
        found[key] = value
    return found


def secret_values(names: Iterable[str]) -> dict[str, str]:
    """Each secret's value: this environment's variable of that name, else a hidden prompt, else the next line of stdin."""
    found = {}
    for name in names:
        if not _KEY.match(name):
            # The text may be K=V with the secret in it, so the error does not repeat it.
            raise UsageError("--secret expects only a variable's name; its value comes from the environment, a prompt or stdin")
        if name in os.environ:
            found[name] = os.environ[name]
        elif sys.stdin.isatty():
            found[name] = click.prompt(f"value of secret {name}", hide_input=True, err=True)
        elif line := sys.stdin.readline():
            found[name] = line.rstrip("\r\n")
        else:
            raise UsageError(f"secret {name} has no value: set the variable {name}, or give one line on stdin")
    return found


def require_once(env: dict[str, str], secrets: dict[str, str]) -> None:
    """UsageError if a variable is given both as --env and as --secret."""
    if twice := env.keys() & secrets.keys():
        raise UsageError(f"given both as --env and as --secret: {', '.join(sorted(twice))}")


def file_paths(texts: Iterable[str]) -> dict[str, Path]:
    """{name: path} from PATH[:NAME] texts. UsageError for a name outside of the operator's folder."""
    found: dict[str, Path] = {}
    for text in texts:
        source, sep, name = text.rpartition(":")
        if not sep or "/" in name and Path(text).exists():
            source, name = text, ""
        inside = PurePosixPath(name or Path(source).name)
        if inside.is_absolute() or ".." in inside.parts or not inside.name:
            raise UsageError(f"--file {text}: {str(inside)!r} must be a relative path inside the operator's folder")
        found[str(inside)] = Path(source)
    return found


def file_contents(texts: Iterable[str]) -> dict[str, bytes]:
    """{name: bytes} from PATH[:NAME] texts. UsageError as `file_paths`, or for too much in total; NotFound for a missing file."""
    found: dict[str, bytes] = {}
    for inside, source in file_paths(texts).items():
        try:
            found[inside] = source.read_bytes()
        except FileNotFoundError:
            raise NotFound(f"--file {inside}: there is no file {source}") from None
        except OSError as e:
            raise UsageError(f"--file {source}: {e.strerror}") from e
    if (total := sum(map(len, found.values()))) > FILES_BYTES:
        raise UsageError(
            f"--file: {total >> 20} MiB in total, at most {FILES_BYTES >> 20}; put large files into the operator's folder and push"
        )
    return found
