"""The Application Manager (paper 5, section 3.2): compares an application's response time and downtime with its SLA, and grants or
declines the proposals of the Operator Managers on its deployments' nodes (managed.py).

Pure functions: `sla` decides on one sample, with a token bucket for memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from elasticity.scaling import edf
from elasticity.scaling.edf import Bucket
from elasticity.scaling.model import Kind, Plan

INTERVAL_S = 30.0


@dataclass(frozen=True)
class Proposal:
    """A proposal of a deployment's Operator Manager on a node; number: of its decision there; before: replicas there now."""

    node: str
    number: int
    before: int
    plan: Plan

    @property
    def gain(self) -> float:
        """The improvement that the plan promises (Plan.gain)."""
        return self.plan.gain

    @property
    def cost_ms(self) -> float:
        """The downtime that the plan costs, in ms (Plan.cost_ms)."""
        return self.plan.cost_ms

    @property
    def kind(self) -> Kind:
        """The kind of the plan's step."""
        return self.plan.kind


@dataclass(frozen=True)
class ChainPart:
    """A deployment of the chain, over all live nodes. response_ms: from push to answer on its slowest node, None without frames; missing:
    the reason for missing figures, or ''; down_ms: time since the previous sample in which one of its slots had no owner."""

    deployment: str
    response_ms: float | None
    missing: str = ""
    down_ms: float = 0.0


@dataclass(frozen=True)
class ApplicationSample:
    """An application at one moment: its deployments in the order of the chain, and the proposals for them."""

    at_s: float
    chain: tuple[ChainPart, ...]
    proposals: tuple[Proposal, ...] = ()


@dataclass(frozen=True)
class ApplicationDecision:
    """response_ms: from source to sink, None if unknown or nothing is under way; down_ms: in the last hour."""

    response_ms: float | None
    down_ms: float
    granted: tuple[Proposal, ...] = ()
    declined: tuple[tuple[Proposal, str], ...] = ()


@dataclass(frozen=True)
class SlaSettings(edf.TokenSettings):
    """response_ms, downtime_percent of the last hour: the SLA; None: no limit. idle_token_s (ours): a token per this interval while the
    response time is good, so that replicas are given back; 0: none, as in the paper."""

    response_ms: float = edf.R_MAX_MS
    downtime_percent: float | None = None
    idle_token_s: float = 600.0


def sla(sample: ApplicationSample, memory: Bucket | None, settings: SlaSettings) -> tuple[ApplicationDecision, Bucket]:
    """Grant by gain ÷ cost, best first, a token each but for balancing, while the downtime of the last hour stays within the SLA's.

    Nothing is granted while a deployment has no figures: missing figures do not count as a good response time.
    """
    bucket = memory or Bucket()
    down_ms = min(sum(part.down_ms for part in sample.chain), 1000 * _passed_s(bucket, sample.at_s))
    bucket, known = bucket.measured(sample.at_s, down_ms).recent(sample.at_s), response(sample)
    missing = "; ".join(f"{part.deployment}: {part.missing}" for part in sample.chain if part.missing)
    worried = known is not None and known > settings.beta * settings.response_ms
    token_s = None if missing else (settings.token_s if worried else settings.idle_token_s) or None
    bucket = edf.refill(bucket, sample.at_s, token_s, settings.capacity)
    down_ms = sum(ms for _, ms in bucket.spent)
    if missing:
        return ApplicationDecision(known, down_ms, (), tuple((p, f"no figures of {missing}") for p in sample.proposals)), bucket
    share = None if settings.downtime_percent is None else settings.downtime_percent / 100
    granted, declined, bucket = edf.application_manager(sample.proposals, bucket, sample.at_s, share)
    return ApplicationDecision(known, down_ms, tuple(granted), tuple(declined)), bucket


def response(sample: ApplicationSample) -> float | None:
    """Response time from source to sink: the sum over the deployments that have frames; None if figures are missing."""
    there = [part.response_ms for part in sample.chain if part.response_ms is not None]
    return round(sum(there), 3) if there and not any(part.missing for part in sample.chain) else None


def kept(decision: ApplicationDecision, response_ms: float, downtime_percent: float | None) -> bool | None:
    """Whether this SLA is kept; None if the response time is unknown."""
    if decision.response_ms is None:
        return None
    within = downtime_percent is None or decision.down_ms <= 10 * downtime_percent * edf.DOWNTIME_WINDOW_S
    return decision.response_ms <= response_ms and within


def _passed_s(bucket: Bucket, at_s: float) -> float:
    return edf.DOWNTIME_WINDOW_S if bucket.at_s is None else max(at_s - bucket.at_s, 0.0)
