"""Facts about an operator that the driver gets from the registry before a query starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from udo_protocol.certificates import Tls
from udo_protocol.errors import UsageError
from udo_protocol.formats.manifest import Manifest, parse
from udo_protocol.formats.schema import type_text
from udo_protocol.limits import KEY_GROUPS
from udo_protocol.registry.api import Registry


@dataclass(frozen=True)
class Deployed:
    """A deployment (or a pinned version of it) and the schemas a query is planned with."""

    reference: str
    what: str
    input: pa.Schema
    output: pa.Schema
    key: tuple[str, ...] = ()
    key_groups: int = KEY_GROUPS
    inputs: Mapping[str, pa.Schema] = field(default_factory=dict)

    @property
    def key_columns(self) -> tuple[tuple[str, str], ...]:
        """Name and type of each key column."""
        return tuple((n, type_text(self.input.field(n).type)) for n in self.key)


def plan(reference: str, url: str, tls: Tls | None = None) -> int:
    """Take a number for a new plan that calls the operator: higher than all before, whichever driver took them."""
    with Registry(url, tls=tls) as registry:
        return registry.plan(reference.partition("@")[0])


def fetch(reference: str, url: str, tls: Tls | None = None) -> Deployed:
    """Ask the registry at `url`; NotFound lists similar names, Unavailable says how to start a registry."""
    name, _, pin = reference.partition("@")
    with Registry(url, tls=tls) as registry:
        found = registry.deployment(name)
        version = found if not pin else registry.version(found["operator"], pin)
    manifest: Manifest = parse(version["manifest"], f"the manifest of {reference} in {url}")
    groups = int(found["limits"].get("key_groups", KEY_GROUPS))
    what = f"operator {manifest.reference} (deployment {reference})"
    if manifest.key and pin:
        raise UsageError(f"{what} keeps state, and a pinned version would have a state of its own; call it as udo({name!r})")
    return Deployed(reference, what, manifest.input_schema, manifest.output_schema, manifest.key, groups, manifest.input_schemas)
