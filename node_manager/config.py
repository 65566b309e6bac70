"""The configuration of a deployment on this node, and the release that it serves. It is parsed once, and stored as it came."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from elasticity.scaling.application_wish import Membership
from elasticity.scaling.modes import Elasticity
from node_manager.drivers import network
from node_manager.servers.access import PASSWORD_FILE
from udo_protocol.errors import UsageError
from udo_protocol.formats.manifest import Manifest
from udo_protocol.limits import MOST_KEY_GROUPS, MOST_RETRIES, SlotLimits
from udo_protocol.state.dead_letters import FAIL, POLICIES

# Variables that would also act on programs that run outside of a sandbox or container.
_LOADERS = re.compile(r"(LD_\w+|GLIBC_TUNABLES|GCONV_PATH|LOCPATH|OPENSSL_(CONF|ENGINES|MODULES))$")
# The files that the platform itself puts into an instance's directory.
_OURS = ("log", "log.1", PASSWORD_FILE, network.HOSTS, network.NSSWITCH)


@dataclass(frozen=True)
class InstanceConfig:
    """A deployment's additions to its operator. Never logged: it holds secrets."""

    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    files: Mapping[str, str] = field(default_factory=dict, repr=False)  # path -> base64
    limits: Mapping[str, Any] = field(default_factory=dict)
    policy: str = FAIL  # for events that the operator fails on: udo_protocol.state.dead_letters

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> InstanceConfig:
        """Parse config_json or the registry's `config`; unknown entries belong to others. UsageError for a bad entry."""
        for path in data.get("files") or {}:
            p = PurePosixPath(path)
            if p.is_absolute() or ".." in p.parts or not p.parts or p.parts[0] in _OURS:
                raise UsageError(f"a deployment's file must be a relative path inside the instance's directory, got {path!r}")
        env, secret, files, limits = (data.get(n) or {} for n in ("env", "secrets", "files", "limits"))
        for bound in fields(SlotLimits):
            if not isinstance(value := limits.get(bound.name, 1), int | float) or not float(value).is_integer():
                raise UsageError(f"limit {bound.name}: expected a whole number, got {value!r}")
        bounds = SlotLimits.of(limits)
        if loaders := [name for name in (*env, *secret) if _LOADERS.match(name)]:
            raise UsageError(
                f"variable {loaders[0]} makes programs load other code, also those of the node that confine an operator: expected it to be "
                "set by a start script of the operator's own"
            )
        if (policy := data.get("policy") or FAIL) not in POLICIES:
            raise UsageError(f"policy: expected {' or '.join(map(repr, POLICIES))}, got {policy!r}")
        if not 0 <= bounds.retries <= MOST_RETRIES:
            raise UsageError(f"limit retries: expected 0 to {MOST_RETRIES}, got {bounds.retries}")
        if not 1 <= bounds.key_groups <= MOST_KEY_GROUPS:
            raise UsageError(f"limit key_groups: expected 1 to {MOST_KEY_GROUPS}, got {bounds.key_groups}")
        return cls(env, secret, files, {k: int(v) for k, v in limits.items()}, policy)

    @property
    def key_groups(self) -> int:
        """The number of key groups of a keyed operator's state."""
        return self.slot_limits.key_groups

    @cached_property
    def slot_limits(self) -> SlotLimits:
        """The bounds of its slots and lanes."""
        return SlotLimits.of(self.limits)

    def answer_timeout_s(self, manifest: Manifest) -> float:
        """Seconds within which this operator has to answer a frame."""
        ms = self.limits.get("answer_timeout_ms")
        return ms / 1000 if ms else manifest.limits.answer_timeout_s

    def bad_events(self) -> str:
        """The policy for events that the operator fails on, as text for people."""
        retries = self.slot_limits.retries
        return self.policy + (f", {retries} retries" if retries else "")


@dataclass(frozen=True)
class DeploymentConfig:
    """A deployment's configuration: `document` is config_json or the `config` of a WantedDeployment (udo_protocol.registry.wanted), with
    env, secrets, files, limits and policy, elasticity and application, each optional. Holds secrets. Each part is parsed when it is asked
    for: one that a later release has written does not keep the others from being used. UsageError for a bad entry."""

    document: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @cached_property
    def instance(self) -> InstanceConfig:
        """The part that its instances get."""
        return InstanceConfig.parse(self.document)

    @cached_property
    def elasticity(self) -> Elasticity:
        """How it is scaled."""
        return Elasticity.parse(self.document.get("elasticity"))

    @cached_property
    def application(self) -> Membership | None:
        """The application to which it belongs; None if there is none, or it is off."""
        return Membership.parse(self.document.get("application"))

    def require_valid(self) -> None:
        """Parse the parts that this node acts on. UsageError for a bad entry."""
        _ = self.instance, self.elasticity

    @property
    def in_application(self) -> bool:
        """Whether it belongs to an application, even to one that is off."""
        return bool(self.document.get("application"))

    def changed(self, parts: Mapping[str, Any] | None) -> DeploymentConfig:
        """The configuration with these parts in place of its own."""
        return DeploymentConfig({**self.document, **(parts or {})})


@dataclass(frozen=True)
class Release:
    """The release that a deployment serves: a version of its operator, by its name and the digest of its image, and the configuration."""

    version: str
    digest: str
    config: DeploymentConfig = DeploymentConfig()
