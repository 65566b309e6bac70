"""Code that all pages of the console share: their routes' blueprint, the check of forms, errors as pages, the frame around a page."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, current_app, make_response, redirect, render_template, request, session, url_for

from registry.console import signing_in
from registry.http.web import error_of

routes = Blueprint("console", __name__, url_prefix=signing_in.PATH, template_folder="templates", static_folder="static")
routes.after_request(signing_in.guard)


@routes.before_request
def check() -> None:
    """Accept a form only from the console's own pages."""
    if request.method not in ("GET", "HEAD", "OPTIONS"):
        signing_in.require_own_form()


@routes.errorhandler(Exception)
def failed(e: Exception) -> Response:
    """Show the error as a page."""
    status, _, message, _ = error_of(e)
    return page("error.html", status, message=message)


def page(template: str, status: int = 200, **values: Any) -> Response:
    """Render the template with these values."""
    who = session.get("who") if signing_in.is_signed_in() else None
    return make_response(render_template(template, who=who, form=session.get("form", ""), **values), status)


def to(endpoint: str, **values: Any) -> Response:
    """Redirect to another page of the console after a form."""
    return current_app.make_response(redirect(url_for(f"console.{endpoint}", **values), 303))
