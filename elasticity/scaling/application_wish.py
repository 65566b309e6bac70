"""The configuration of an application's manager: its deployments, SLA, mode (whether grants are carried out) and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from elasticity.scaling import application, edf
from elasticity.scaling.managed import ManagedSettings
from elasticity.scaling.modes import ADVISE, MODES, OFF, Elasticity
from udo_protocol.errors import UsageError

MOST_DEPLOYMENTS = 64
# The settings that an application may change, besides its SLA: of its manager, and of the Operator Managers on its nodes.
MANAGER_SETTINGS = ("beta", "token_s", "capacity", "idle_token_s")
NODE_SETTINGS = ("u_max", "s_out", "c", "calm_s", "reverse_s")


@dataclass(frozen=True)
class ApplicationWish:
    """deployments: in the order of the chain. mode off: they behave as without an application; advise: decisions are only recorded; auto:
    grants are carried out. response_ms, downtime_percent: the SLA; None: no limit. interval_s: between two decisions."""

    deployments: tuple[str, ...]
    mode: str = ADVISE
    response_ms: float = edf.R_MAX_MS
    downtime_percent: float | None = None
    interval_s: float = application.INTERVAL_S
    settings: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> ApplicationWish:
        """Parse JSON. UsageError names the entry that is unknown, of another type, or out of range."""
        if unknown := data.keys() - cls.__dataclass_fields__.keys():
            raise UsageError(f"application: no entry {min(unknown)!r}; there are {', '.join(cls.__dataclass_fields__)}")
        names = data.get("deployments", ())
        if not isinstance(names, list | tuple) or not names or not all(isinstance(n, str) for n in names):
            raise UsageError(f"application: expected deployments by name, in the order of the chain, got {names!r}")
        if len(set(names)) != len(names) or len(names) > MOST_DEPLOYMENTS:
            raise UsageError(f"application: expected at most {MOST_DEPLOYMENTS} deployments, each once, got {', '.join(names)}")
        made = cls(**{**data, "deployments": tuple(names)})
        if made.mode not in MODES:
            raise UsageError(f"application: expected mode {', '.join(MODES)}, got {made.mode!r}")
        _in_range("response_ms", made.response_ms, 0.001, float("inf"))
        _in_range("interval_s", made.interval_s, 0.1, 86_400)
        if made.downtime_percent is not None:
            _in_range("downtime_percent", made.downtime_percent, 0, 100)
        if not isinstance(made.settings, Mapping):
            raise UsageError(f"application: expected settings by name, got {made.settings!r}")
        for name, value in made.settings.items():
            if name not in MANAGER_SETTINGS + NODE_SETTINGS:
                raise UsageError(f"application: no setting {name!r}; there are {', '.join(MANAGER_SETTINGS + NODE_SETTINGS)}")
            _in_range(f"setting {name}", value, 0 if name != "token_s" else 0.001, float("inf"))
            if name == "capacity" and value != int(value):
                raise UsageError(f"application: setting capacity: expected a whole number, got {value!r}")
        return made

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "deployments": list(self.deployments)}

    def manager_settings(self) -> dict[str, Any]:
        """Settings of `application.sla`."""
        own = {name: self.settings[name] for name in MANAGER_SETTINGS if name in self.settings}
        return {"response_ms": self.response_ms, "downtime_percent": self.downtime_percent, **own}

    def handed_out(self, name: str) -> dict[str, Any]:
        """The part of the configuration that nodes receive with each of its deployments."""
        own = {name: self.settings[name] for name in NODE_SETTINGS if name in self.settings}
        return {"name": name, "mode": self.mode, "settings": own}


@dataclass(frozen=True)
class Membership:
    """The application of a deployment as its node knows it."""

    name: str
    mode: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, data: Any) -> Membership | None:
        """Parse JSON. None if the deployment belongs to no application, or to one that is off."""
        if not isinstance(data, Mapping) or data.get("mode", OFF) == OFF:
            return None
        return cls(str(data["name"]), str(data["mode"]), dict(data.get("settings") or {}))

    def header(self, wish: Elasticity, cores: int) -> dict[str, Any]:
        """Settings of `managed` on a node with this many cores; the deployment's own settings override the application's."""
        known, given = ManagedSettings.__dataclass_fields__, {**self.settings, **wish.header(cores)}
        return {name: value for name, value in given.items() if name in known}


def _in_range(name: str, value: Any, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high or value == float("inf"):
        raise UsageError(f"application: expected {name} from {low:g} to {high:g}, got {value!r}")
