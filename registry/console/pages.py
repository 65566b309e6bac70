"""The console's pages of the registry's own data: each reads through one function of the domain, or starts an action of the API.

No rule lives here. Pages of data that only nodes have are in node_pages.py.
"""

from __future__ import annotations

from typing import Any

from flask import Response, request
from pydantic import ValidationError

from elasticity.scaling.application_wish import ApplicationWish
from elasticity.scaling.journal_rows import result_of, rows_of_application, step_of
from registry.console import signing_in
from registry.console.framing import page, routes, to
from registry.domain import application_lines, applications, audit, catalogue, deployments, group_maps, history, nodes, updates
from registry.domain.canaries import CanaryBody
from registry.http.starting import TIMEOUT_S, promote, start
from registry.http.web import number, services
from udo_protocol.errors import UsageError
from udo_protocol.lifecycle import UPDATE_OPEN

_UPDATES, _ROWS, _DECISIONS = 20, 100, 50


@routes.get("/")
def overview() -> Response:
    s = services()
    with s.store.read() as db:
        there = s.presence(db)
        found = deployments.everything(db, there)
        return page("deployments.html", deployments=found, live=len(there.live), away=len(there.away))


@routes.get("/deployments/<name>")
def deployment(name: str) -> Response:
    s = services()
    with s.store.read() as db:
        found = deployments.describe(db, deployments.find(db, name), s.presence(db))
        versions: list[dict[str, Any]] = next((o["versions"] for o in catalogue.operators(db) if o["name"] == found["operator"]), [])
        return page(
            "deployment.html",
            d=found,
            versions=[v for v in versions if v["digest"] != found["digest"]],
            updates=history.updates(db, name, _UPDATES),
            maps=group_maps.everything(db, name),
        )


@routes.post("/deployments/<name>/<any(update, rollback, promote):action>")
def begin(name: str, action: str) -> Response:
    by = signing_in.caller()
    if action == "promote":
        return to("update", update_id=promote(by, name))
    version = request.form.get("version") or None
    if action == "update" and version is None:
        raise UsageError("update: expected the version to go to")
    wish = updates.WantedUpdate(name, action, version, TIMEOUT_S, _canary() if action == "update" else None)
    return to("update", update_id=start(by, wish))


def _canary() -> dict[str, Any] | None:
    """The canary that the form asks for, or None."""
    given = {field: request.form.get(field, "").strip() for field in ("percent", "for_s", "min_events")}
    conditions = request.form.get("rollback_if", "").replace(",", " ").split()
    if not (conditions or any(given.values())):
        return None
    if not given["percent"]:  # else an update without a canary would begin at once
        raise UsageError("canary: expected its share in %, since something else of it is given; nothing was started")
    try:
        return CanaryBody.model_validate({k: v for k, v in given.items() if v} | {"rollback_if": conditions}).model_dump()
    except ValidationError as e:
        problems = [f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in e.errors(include_input=False, include_context=False)]
        raise UsageError(f"canary: {'; '.join(problems)}") from None


@routes.get("/updates/<update_id>")
def update(update_id: str) -> Response:
    with services().store.read() as db:
        found = updates.describe(db, updates.find(db, update_id))
    return page("update.html", u=found, under_way=found["state"] in UPDATE_OPEN)


@routes.get("/operators")
def operators() -> Response:
    with services().store.read() as db:
        return page("operators.html", operators=catalogue.operators(db))


@routes.get("/applications")
def all_applications() -> Response:
    with services().store.read() as db:
        wishes = applications.wishes(db)
    return page("applications.html", applications=[(n, wish, services().managers.now(n, wish)) for n, wish in wishes.items()])


@routes.get("/applications/<name>")
def application(name: str) -> Response:
    """The latest decisions of its manager are shown only to signed-in users: a journal is some MB to read."""
    with services().store.read() as db:
        wish = ApplicationWish.parse(applications.find_application(db, name).wish)
        told = application_lines.latest(db, name) if signing_in.is_signed_in() else []
    rows = list(rows_of_application(name, told, False))[-_DECISIONS:]
    now = services().managers.now(name, wish)
    return page("application.html", name=name, wish=wish, now=now, decisions=[(row, step_of(row), result_of(row)) for row in rows[::-1]])


@routes.get("/nodes")
def all_nodes() -> Response:
    s = services()
    with s.store.read() as db:
        return page("nodes.html", nodes=nodes.everything(db, s.presence(db)))


@routes.get("/audit")
def trail() -> Response:
    """For signed-in users only, as in the API."""
    signing_in.require_signed_in()
    name = request.args.get("deployment") or None
    with services().store.read() as db:
        return page("audit.html", rows=audit.rows(db, name, int(number("limit", _ROWS, 1000))), name=name)


@routes.get("/sign-in")
def signing() -> Response:
    return page("sign_in.html")


@routes.post("/sign-in")
def signed_in() -> Response:
    signing_in.sign_in(request.form.get("token", ""), request.form.get("name", ""))
    return to("overview")


@routes.post("/sign-out")
def signed_out() -> Response:
    signing_in.sign_out()
    return to("overview")
