"""The JSON API of applications, and of nodes' proposals. Thin routes, as in api.py."""

from __future__ import annotations

from flask import Blueprint, Response

from elasticity.scaling.application_wish import ApplicationWish
from registry.domain import application_lines, applications
from registry.domain.application_managers import ToldBody
from registry.domain.applications import ChangedApplication, NewApplication, describe_application
from registry.http.api import checked_node
from registry.http.web import body, caller, reply, services
from registry.store.models import Application

application_routes = Blueprint("applications", __name__, url_prefix="/api/v1")


@application_routes.get("/applications")
def list_applications() -> Response:
    with services().store.read() as session:
        found = [applications.find_application(session, name) for name in applications.wishes(session)]
        return reply({"applications": [_shown(a) for a in found]})


@application_routes.post("/applications")
def create() -> Response:
    new = body(NewApplication)
    with services().store.write() as session:
        made, created = applications.create_application(session, caller(), new)
        return reply(_shown(made), 201 if created else 200)


@application_routes.get("/applications/<name>")
def show(name: str) -> Response:
    with services().store.read() as session:
        return reply(_shown(applications.find_application(session, name)))


@application_routes.post("/applications/<name>")
def change(name: str) -> Response:
    wish = body(ChangedApplication)
    with services().store.write() as session:
        return reply(_shown(applications.change_application(session, caller(), name, wish)))


@application_routes.delete("/applications/<name>")
def remove(name: str) -> Response:
    with services().store.write() as session:
        applications.remove_application(session, caller(), name)
    return reply({})


@application_routes.get("/applications/<name>/journal")
def journal(name: str) -> Response:
    """The segments of its journal, oldest first."""
    with services().store.read() as session:
        applications.find_application(session, name)
        return reply({"segments": [{"segment": n, "lines": lines} for n, lines in application_lines.segments(session, name)]})


@application_routes.post("/nodes/<node>/proposals")
def propose(node: str) -> Response:
    """Take a node's figures and proposals; the answer has its grants."""
    return reply(services().managers.take(checked_node(node), body(ToldBody)))


def _shown(a: Application) -> dict[str, object]:
    return {**describe_application(a), "now": services().managers.now(a.name, ApplicationWish.parse(a.wish))}
