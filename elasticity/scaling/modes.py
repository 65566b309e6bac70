"""A deployment's elasticity: whether the controllers act, by which policy, and within which bounds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from elasticity import policies
from elasticity.bottleneck import fuzzy
from elasticity.scaling import local, scale_out
from udo_protocol.errors import UsageError
from udo_protocol.limits import MOST_SLOTS

OFF, ADVISE, AUTO = "off", "advise", "auto"
MODES = (OFF, ADVISE, AUTO)
_SETTING_CHARACTERS = 64 << 10
# The policies that a node runs around another one, or instead of it: deployments must not name them.
_AROUND = {"local", "managed"}
# The name of a balancing policy; the package, or a node (udo node --policies), knows its function.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,99}")


@dataclass(frozen=True)
class Elasticity:
    """off: nothing is decided. advise: decisions are only recorded. auto: they are carried out.

    policy: a shipped scaling policy. least, most: slots on each node; most 0: as many as the node has cores. idle_after_s: after this
    long without an event a deployment without state has no instance until the next event; 0: never. settings: of the policy, or of
    `local`, which keeps it within the bounds.
    """

    mode: str = ADVISE
    policy: str = local.POLICY
    least: int = 1
    most: int = 0
    idle_after_s: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, data: Mapping[str, Any] | None) -> Elasticity:
        """Parse JSON. UsageError names the entry that is unknown, of another type, or out of range."""
        given = dict(data or {})
        if unknown := given.keys() - cls.__dataclass_fields__.keys():
            raise UsageError(f"elasticity: no entry {min(unknown)!r}; there are {', '.join(cls.__dataclass_fields__)}")
        made = cls(**given)
        if made.mode not in MODES:
            raise UsageError(f"elasticity: expected mode {', '.join(MODES)}, got {made.mode!r}")
        for name, low in (("least", 1), ("most", 0)):
            value = getattr(made, name)
            if type(value) is not int or not low <= value <= MOST_SLOTS:
                raise UsageError(f"elasticity: expected {name} from {low} to {MOST_SLOTS}, got {value!r}")
        if made.most and made.least > made.most:
            raise UsageError(f"elasticity: expected least <= most, got {made.least} and {made.most}")
        if (
            isinstance(made.idle_after_s, bool)
            or not isinstance(made.idle_after_s, int | float)
            or not 0 <= made.idle_after_s < float("inf")
        ):
            raise UsageError(f"elasticity: expected idle_after_s in seconds, 0 for never, got {made.idle_after_s!r}")
        made._check_settings()
        return made

    @classmethod
    def stored(cls, data: Mapping[str, Any] | None) -> Elasticity:
        """Settings that were parsed before, to be shown. They are not checked again: a later release may have become stricter."""
        return cls(**(data or {}))

    def _check_settings(self) -> None:
        known = policies.shipped()["scaling"]
        if self.policy not in known or self.policy in _AROUND:  # a node loads no code that a deployment names
            raise UsageError(f"elasticity: expected a policy that comes with the package, {', '.join(sorted(known.keys() - _AROUND))}")
        own = {**vars(local.LocalSettings()), **vars(policies.settings(policies.find("scaling", self.policy)))}
        for reserved in ("policy", "least", "most", "idle_after_s", "inner"):
            del own[reserved]
        if not isinstance(self.settings, Mapping):
            raise UsageError(f"elasticity: expected settings by name, got {self.settings!r}")
        for name, value in self.settings.items():
            if name not in own:
                raise UsageError(f"elasticity: policy {self.policy!r} has no setting {name!r}; there are {', '.join(sorted(own))}")
            text = isinstance(own[name], str)
            if isinstance(value, bool) or not isinstance(value, str if text else int | float) or len(str(value)) > _SETTING_CHARACTERS:
                raise UsageError(f"elasticity: setting {name}: expected {'a text' if text else 'a number'}, got {str(value)[:60]!r}")
            if not text and not 0 <= float(value) < float("inf"):
                raise UsageError(f"elasticity: setting {name}: expected a number of at least 0, got {value!r}")
            if isinstance(own[name], int) and value != int(value):
                raise UsageError(f"elasticity: setting {name}: expected a whole number, got {value!r}")
        if rules := self.settings.get("rules"):
            fuzzy.given(rules)
        if (strategy := self.settings.get("strategy", "")) not in ("", *scale_out.STRATEGIES):
            ways = ", ".join(scale_out.STRATEGIES)
            raise UsageError(f"elasticity: setting strategy: expected {ways}, or nothing to prepare nothing, got {str(strategy)[:60]!r}")
        if not float(self.settings.get("refresh_s", scale_out.REFRESH_S)) >= scale_out.LEAST_REFRESH_S:
            least = f"at least {scale_out.LEAST_REFRESH_S:g} s"
            raise UsageError(f"elasticity: setting refresh_s: expected {least}, got {self.settings['refresh_s']!r}")
        if (balance := self.settings.get("balance")) and not _NAME.fullmatch(str(balance)):
            raise UsageError(f"elasticity: setting balance: expected the name of a balancing policy, got {str(balance)[:60]!r}")

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @property
    def scales_out_by(self) -> tuple[str, float]:
        """The strategy for scaling out an operator with state ('' for unprepared), and the seconds between refreshes of prepared slots."""
        return str(self.settings.get("strategy", scale_out.STRATEGY)), float(self.settings.get("refresh_s", scale_out.REFRESH_S))

    def balanced_by(self, policy: str) -> Elasticity:
        """A copy with this balancing policy."""
        return replace(self, settings={**self.settings, "balance": policy})

    def header(self, cores: int) -> dict[str, Any]:
        """Settings of `local` on a node with this many cores."""
        most = self.most or max(min(cores, MOST_SLOTS), self.least)
        idle = {"idle_after_s": float(self.idle_after_s)} if self.idle_after_s else {}
        return {"policy": self.policy, "least": self.least, "most": most, **idle, **self.settings}
