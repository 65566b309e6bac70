"""Applications: deployments that are named together in the order of their chain, with an SLA (elasticity/scaling/application_wish.py).

A deployment belongs to one application at most, and cannot be undeployed while it does; removing the application leaves its deployments
as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from elasticity.scaling.application_wish import MOST_DEPLOYMENTS, ApplicationWish
from registry.domain import audit, catalogue
from registry.domain.audit import Caller, iso
from registry.store.models import Application, ApplicationLine, Deployment
from registry.store.store import bump
from udo_protocol.errors import Conflict, NotFound
from udo_protocol.formats.manifest import Name

MOST_APPLICATIONS = 1000


class ChangedApplication(BaseModel):
    """Body of POST /api/v1/applications/<name>; fields not given stay as they are. A setting of null is removed."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    deployments: list[Name] | None = Field(default=None, min_length=1, max_length=MOST_DEPLOYMENTS)
    mode: Literal["off", "advise", "auto"] | None = None
    response_ms: float | None = None
    downtime_percent: float | None = None
    interval_s: float | None = None
    settings: dict[Annotated[str, Field(max_length=100)], float | None] | None = None


class NewApplication(ChangedApplication):
    """Body of POST /api/v1/applications."""

    name: Name


def find_application(session: Session, name: str) -> Application:
    """The application of that name; NotFound lists similar names."""
    if found := session.get(Application, name):
        return found
    raise NotFound(f"no application {name!r}{catalogue.near(name, list(session.scalars(select(Application.name))))}")


def wishes(session: Session) -> dict[str, ApplicationWish]:
    """All applications, by name."""
    return {a.name: ApplicationWish.parse(a.wish) for a in session.scalars(select(Application).order_by(Application.name))}


def memberships(session: Session) -> dict[str, dict[str, Any]]:
    """For each deployment of an application, the part of the application that nodes receive with it."""
    return {d: wish.handed_out(name) for name, wish in wishes(session).items() for d in wish.deployments}


def require_free(session: Session, deployment: str, what: str) -> None:
    """Conflict if the deployment belongs to an application."""
    if found := memberships(session).get(deployment):
        name = found["name"]
        raise Conflict(f"deployment {deployment!r} belongs to application {name!r}: {what} after udo app rm {name}, or udo app set {name}")


def require_no_application(session: Session, name: str) -> None:
    """Conflict if an application has that name: `udo events` asks for decisions by the name of either."""
    if session.get(Application, name):
        raise Conflict(f"there is an application {name!r}: a deployment needs another name")


def create_application(session: Session, caller: Caller, new: NewApplication) -> tuple[Application, bool]:
    """(application, whether it is new). Repeating the same call is fine; a different one under that name is a Conflict."""
    wish = ApplicationWish.parse(_given({}, new))
    if old := session.get(Application, new.name):
        if ApplicationWish.parse(old.wish) == wish:
            return old, False
        raise Conflict(f"application {new.name!r} exists with other deployments, SLA or settings: change it with udo app set {new.name}")
    if session.get(Deployment, new.name):
        raise Conflict(f"there is a deployment {new.name!r}: an application needs another name")
    if len(wishes(session)) >= MOST_APPLICATIONS:
        raise Conflict(f"there are {MOST_APPLICATIONS} applications, as many as may be: remove some (udo app rm)")
    _require_deployments(session, new.name, wish)
    made = Application(name=new.name, wish=wish.record(), created_at=caller.now)
    session.add(made)
    bump(session)
    audit.record(session, caller, "app create", detail=f"{new.name}: {_told(wish)}")
    return made, True


def change_application(session: Session, caller: Caller, name: str, body: ChangedApplication) -> Application:
    """Change these entries; nodes receive them."""
    found = find_application(session, name)
    wish = ApplicationWish.parse(_given(found.wish, body))
    if wish == ApplicationWish.parse(found.wish):
        return found
    _require_deployments(session, name, wish)
    found.wish = wish.record()
    bump(session)
    audit.record(session, caller, "app set", detail=f"{name}: {_told(wish)}")
    return found


def remove_application(session: Session, caller: Caller, name: str) -> None:
    """Remove the application and its journal. Its deployments stay, and decide by their own modes again."""
    session.delete(find_application(session, name))
    session.execute(delete(ApplicationLine).where(ApplicationLine.application == name))
    bump(session)
    audit.record(session, caller, "app rm", detail=name)


def describe_application(a: Application) -> dict[str, Any]:
    """An application as shown without a token."""
    return {"name": a.name, **ApplicationWish.parse(a.wish).record(), "created_at": iso(a.created_at)}


def _given(before: Mapping[str, Any], body: ChangedApplication) -> dict[str, Any]:
    told = body.model_dump(exclude_none=True, exclude={"name"})
    settings = {**before.get("settings", {}), **(body.settings or {})}
    return {**before, **told, "settings": {name: value for name, value in settings.items() if value is not None}}


def _require_deployments(session: Session, name: str, wish: ApplicationWish) -> None:
    known = memberships(session)
    for deployment in wish.deployments:
        if session.get(Deployment, deployment) is None:
            there = list(session.scalars(select(Deployment.name)))
            raise NotFound(f"no deployment {deployment!r}{catalogue.near(deployment, there)}")
        if (other := known.get(deployment, {}).get("name", name)) != name:
            raise Conflict(f"deployment {deployment!r} belongs to application {other!r} already")


def _told(wish: ApplicationWish) -> str:
    downtime = "" if wish.downtime_percent is None else f", downtime {wish.downtime_percent:g} %"
    return f"{' '.join(wish.deployments)}, mode {wish.mode}, response {wish.response_ms:g} ms{downtime}"
