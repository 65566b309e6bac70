"""An update's changes of a deployment's variables, secrets and files: named ones are set, or removed by null; all others stay."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from registry.domain.deployments import EnvName, EnvValue, require_files
from registry.store.models import Deployment
from udo_protocol.errors import NotFound

KINDS = {"env": "variable", "secrets": "secret", "files": "file"}


class ConfigBody(BaseModel):
    """The changes; a null removes. Files as for a new deployment: relative path -> base64."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    env: dict[EnvName, EnvValue | None] = {}
    secrets: dict[EnvName, EnvValue | None] = {}
    files: dict[str, str | None] = {}

    @field_validator("files")
    @classmethod
    def _files_stay_inside(cls, files: dict[str, str | None]) -> dict[str, str | None]:
        require_files({name: content or "" for name, content in files.items()})
        return files


def changed(deployment: Deployment, body: ConfigBody | None) -> dict[str, Any] | None:
    """Variables, secrets and files after the change; None if they stay as they are. NotFound if one to remove is missing."""
    if body is None:
        return None
    before = {kind: dict(getattr(deployment, kind)) for kind in KINDS}
    after = {kind: dict(values) for kind, values in before.items()}
    for kind, what in KINDS.items():
        for name, value in getattr(body, kind).items():
            if value is not None:
                after[kind][name] = value
            elif after[kind].pop(name, None) is None:
                there = ", ".join(sorted(before[kind])) or "none"
                raise NotFound(f"deployment {deployment.name!r} has no {what} {name!r} to remove; there are: {there}")
    for kind, other in (("env", "secrets"), ("secrets", "env")):  # a variable has one value: the one given last
        for name, value in getattr(body, kind).items():
            if value is not None and name in before[other]:
                after[other].pop(name, None)
    return after if after != before else None


def told(body: ConfigBody | None) -> str:
    """The changed entries by name only: values may be secrets."""
    if body is None:
        return ""
    named = [f"{'without ' * (value is None)}{what} {name}" for kind, what in KINDS.items() for name, value in getattr(body, kind).items()]
    return ", ".join(named)
