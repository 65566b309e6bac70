"""Assemble the WSGI application from its parts; contains no rule, and no route but the health check."""

from __future__ import annotations

from flask import Flask, Response

from registry.config import RegistrySettings
from registry.console import signing_in
from registry.console.all_pages import routes as console_routes
from registry.content.uploads import Uploads
from registry.http import api, auth, backups, metrics, oci, openapi
from registry.http.applications import application_routes
from registry.http.stream import keep_time
from registry.http.web import Services, authorise, on_error, reply, services
from registry.store import identity
from registry.store.blobs import Blobs
from registry.store.hub import Hub
from registry.store.store import Store
from udo_protocol import supervised


def create_app(config: RegistrySettings) -> Flask:
    """Build the application, with the threads that keep the updates' deadlines and decide about applications."""
    hub = Hub(config.threads - config.reserved_threads)
    blobs = Blobs(config.blobs)
    uploads = Uploads(blobs, config.uploads_most, config.silence_s)
    store = Store(config.database, hub)
    with store.write(durable=True) as session:
        identity.require_same(session, config.blobs, blobs)
    parts = Services(config, store, hub, blobs, uploads, auth.load_tokens(config.token_file), clock=store.clock)
    app = Flask("registry", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = config.body_bytes
    app.extensions["registry"] = parts
    app.register_error_handler(Exception, on_error)
    app.before_request(authorise)
    app.after_request(oci.mark)
    app.register_blueprint(oci.routes)
    app.register_blueprint(api.routes)
    app.register_blueprint(application_routes)
    app.register_blueprint(backups.routes)
    app.register_blueprint(console_routes)
    signing_in.configure(app, parts.tokens, https=config.tls is not None)
    app.add_url_rule("/healthz", view_func=healthz)
    app.add_url_rule("/openapi.json", view_func=lambda: reply(openapi.describe()), endpoint="openapi")
    metrics.measure(app, parts)
    supervised.keep("update-deadlines", lambda: keep_time(parts), hub.stopping)
    supervised.keep("applications", lambda: parts.managers.run(hub.stopping), hub.stopping)
    return app


def healthz() -> Response:
    """Report whether the registry and its database answer."""
    s = services()
    with s.store.read() as session:
        number = identity.stored(session)
        counts = {"live_nodes": len(s.presence(session).live), "waiting_requests": s.hub.waiting}
    signed = s.config.trusted_keys is not None
    counts["background_errors"] = sum(supervised.errors().values())
    return reply({"status": "ok", "registry": number, "generation": s.hub.generation, "requires_signatures": signed, **counts})
