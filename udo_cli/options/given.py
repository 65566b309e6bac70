"""Options that configure a deployment: --env K=V, --secret K, --file PATH[:NAME]. A secret's value is never an argument."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import click

from udo_cli.options.typed import option
from udo_protocol.errors import NotFound, UsageError

_KEY = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
# Files travel inside the deployment's JSON; put models into the operator's folder.
FILES_BYTES = 10 << 20


@dataclass(frozen=True)
class OperatorConfig:
    """The configuration that a deployment gets in addition to the code; `files`: path in its working directory -> content."""

    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)

    def require_once(self) -> None:
        """UsageError if a variable is given both as --env and as --secret."""
        if twice := self.env.keys() & self.secrets.keys():
            raise UsageError(f"given both as --env and as --secret: {', '.join(sorted(twice))}")


@dataclass(frozen=True)
class ConfigOptions:
    """The three options, as they are given."""

    env: tuple[str, ...] = option(multiple=True, metavar="K=V", help="An environment variable of the operator.")
    secrets: tuple[str, ...] = option(
        "--secret",
        multiple=True,
        metavar="K",
        help="Like --env, but the value is read from this environment, a prompt or a line of stdin.",
    )
    files: tuple[str, ...] = option("--file", multiple=True, metavar="PATH[:NAME]", help="Place a file in the operator's folder.")

    def __bool__(self) -> bool:
        return bool(self.env or self.secrets or self.files)

    def read(self) -> OperatorConfig:
        """The configuration that these options give. UsageError and NotFound as in the functions below."""
        variables, contents = environment(self.env), file_contents(self.files)
        return OperatorConfig(variables, secret_values(self.secrets), contents)


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
