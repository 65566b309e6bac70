"""Shell completion from the registry: names of deployments and operators, and their versions. Never an error, never a long wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from udo_protocol.registry.api import Registry

# Short, since the user who pressed the key waits for it.
_TIMEOUT_S = 2.0


def _asked(ask: Callable[[Registry], list[str]], incomplete: str) -> list[str]:
    from udo_cli.settings import CliSettings
    from udo_protocol.registry.api import Registry

    try:
        settings = CliSettings()
        with Registry(settings.registry_url(), timeout_s=_TIMEOUT_S, tls=settings.certificates()) as api:
            return [name for name in ask(api) if name.startswith(incomplete)]
    except Exception:  # no traceback in the middle of a command line
        return []


def deployments(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Names of deployments."""
    return _asked(lambda api: [d["name"] for d in api.deployments()], incomplete)


def applications(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Names of applications."""
    return _asked(lambda api: [a["name"] for a in api.applications()], incomplete)


def operators(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Names of operators; after an @, their versions."""
    return _asked(lambda api: _references(api.operators(), incomplete), incomplete)


def everything(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Names of deployments and operators; after an @, the operators' versions."""
    return _asked(lambda api: sorted({*_references(api.operators(), incomplete), *(d["name"] for d in api.deployments())}), incomplete)


def versions(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Versions of the operator of the deployment given before."""
    return _asked(lambda api: _versions(api.operators(), api.deployment(ctx.params["name"])["operator"]), incomplete)


def former(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Versions that the deployment given before can be rolled back to."""
    return _asked(lambda api: [p["version"] for p in api.deployment(ctx.params["name"])["previous"]], incomplete)


def _references(operators: list[dict[str, Any]], incomplete: str) -> list[str]:
    if "@" not in incomplete:
        return [o["name"] for o in operators]
    name = incomplete.partition("@")[0]
    return [f"{name}@{version}" for version in _versions(operators, name)]


def _versions(operators: list[dict[str, Any]], name: str) -> list[str]:
    return [v["version"] for o in operators if o["name"] == name for v in o["versions"]]
