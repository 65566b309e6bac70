"""Options of the daemons, which `udo node`, `udo registry` and `udo up` start, and the arguments that they are started with."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click

from node_manager.settings import NodeSettings
from udo_cli.options.typed import option

# The first start compiles modules and creates the database; later ones take about two seconds.
START_TIMEOUT_S = 60.0


def _absolute(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
    return path and path.absolute()


def _endpoints(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    for text in given:
        host, port = text.rsplit(":", 1) if ":" in text else ("", "")
        if not host or not port.isdecimal():
            raise click.BadParameter(f"expected HOST:PORT, as in operator.toml, got {text!r}")
    return given


def driver() -> Any:
    """The field for --driver."""
    kinds = click.Choice(["process", "docker"])
    return option(type=kinds, default=NodeSettings.driver, show_default=True, help="How the node runs operators.")


def tls() -> Any:
    """The field for --tls."""
    text = "Folder of certificates: ca.crt, tls.crt and tls.key (see: udo certs). Without it other hosts cannot connect."
    return option(type=click.Path(path_type=Path, file_okay=False, exists=True), callback=_absolute, metavar="FOLDER", help=text)


def public_keys(*flags: str, **settings: Any) -> Any:
    """The field for the folder of keys that sign operator versions."""
    return option(*flags, type=click.Path(path_type=Path, file_okay=False, exists=True), callback=_absolute, **settings)


@dataclass(frozen=True)
class NodeOptions:
    """How a node runs operators: arguments of its node manager, under the same names."""

    driver: str = driver()
    sandbox: str = option(
        type=click.Choice(["auto", "none"]),
        default=NodeSettings.sandbox,
        show_default=True,
        help="Sandbox of the process driver; auto: if the host allows one (see: udo node capabilities).",
    )
    allow_network: tuple[str, ...] = option(
        multiple=True,
        callback=_endpoints,
        metavar="HOST:PORT",
        help="Endpoint that operators may reach if their operator.toml requests it (network); may be repeated. None by default.",
    )
    runtime_image: str = option(default="", metavar="IMAGE", help="Docker driver: image in which Python operators run (docs/docker.md).")
    command_image: str = option(
        default="", metavar="IMAGE", help="Docker driver: image in which commands run that are not statically linked."
    )
    warm: int = option(
        type=click.IntRange(0),
        default=NodeSettings.warm,
        show_default=True,
        help="Number of warm instances, and of warm engines if one was needed, that are kept ready.",
    )
    metrics_port: int = option(
        type=click.IntRange(0, 65535), default=NodeSettings.metrics_port, help="Port of the Prometheus endpoint; 0: any free port."
    )
    metrics_host: str = option(
        default=NodeSettings.metrics_host,
        show_default=True,
        help="Address on which the node's Prometheus endpoint listens; with --tls also 0.0.0.0, all addresses of the host.",
    )
    cut_state: bool = option(
        is_flag=True,
        help="If the state server's file has unreadable bytes, discard the keyed state written after them; a copy of the file is kept.",
    )


@dataclass(frozen=True)
class RegistryOptions:
    """The arguments of a registry, under the same names; for an absent option the registry has a default."""

    data: Path | None = option(
        type=click.Path(path_type=Path, file_okay=False), help="Blobs, database, token, address; UDO_HOME/registry by default."
    )
    listen: str = option(
        default="127.0.0.1:0",
        show_default=True,
        metavar="HOST:PORT|unix:PATH",
        help="Address on which it listens; port 0: any free port, which later starts use again.",
    )
    token_file: Path | None = option(
        type=click.Path(path_type=Path, dir_okay=False), help="The write token; SHARED/token by default, made if absent."
    )
    database: str | None = option(
        metavar="URL",
        help="SQLAlchemy URL; SQLite in DATA by default. May hold a password: prefer UDO_DATABASE.",
        envvar="UDO_DATABASE",
    )
    shared: Path | None = option(
        type=click.Path(path_type=Path, file_okay=False),
        help="Folder of images and token that several processes of one PostgreSQL database have in common; DATA by default.",
    )
    trusted_keys: Path | None = public_keys(help="Folder of public keys *.pub: only versions signed by one of them are accepted.")
    tls: Path | None = tls()


@dataclass(frozen=True)
class _Addresses:
    listen: str = option(
        default="127.0.0.1:0",
        show_default=True,
        metavar="HOST:PORT",
        help="Address on which the registry listens; port 0: any free port, which later starts use again.",
    )
    tls: Path | None = tls()
    node_listen: str = option(
        default="",
        metavar="HOST:PORT",
        help="With --tls: address on which other hosts reach the node; its queue server uses the next port. By default the registry's "
        "address and any two free ports, which later starts use again.",
    )
    node: str = option(default="", metavar="NAME", help="Name of this node; the host's name by default.")


@dataclass(frozen=True)
class UpOptions(NodeOptions, _Addresses):
    """The options of `udo up`, and `decide_s`: seconds between two decisions about slots (0: the node manager's default)."""

    trusted_keys: Path | None = public_keys(
        "--require-signatures", metavar="FOLDER", help="Accept only versions signed by one of the public keys *.pub in this folder."
    )
    timeout_s: float = option(
        "--wait-s", type=click.FloatRange(1), default=START_TIMEOUT_S, show_default=True, help="Seconds to wait until each answers."
    )
    decide_s: float = 0.0


def arguments(options: Any, kind: type[Any] | None = None) -> list[str]:
    """A daemon's arguments for the fields of `options`, which have the same names; with `kind`, only for the fields of that base class."""
    found = []
    for f in fields(kind or options):
        flag, given = f"--{f.name.replace('_', '-')}", getattr(options, f.name)
        values = given if isinstance(given, tuple) else (given,)
        found += [flag if value is True else f"{flag}={value}" for value in values if value is not False and value not in (None, "")]
    return found
