"""Backup and restore of a running registry, by HTTP: thin routes over registry/content/backup.py and restore.py."""

from __future__ import annotations

from flask import Blueprint, Response, request
from sqlalchemy import text
from sqlalchemy.orm import Session

from registry.content import backup, restore
from registry.http.web import caller, flag, reply, services

routes = Blueprint("backups", __name__, url_prefix="/api/v1")
# As large as a file can be: the disk is the bound, and only holders of the token may send a restore.
_MOST_BYTES = 1 << 62


@routes.get("/backup")
def make() -> Response:
    """Send the archive. Its rows are those of one commit; writers wait while they are read, not while files are sent."""
    s = services()
    with s.store.write() as session:
        head, rows = backup.rows(session, _revision(session), s.clock())
    response = Response(backup.archive(head, rows, s.blobs), mimetype="application/x-tar")
    response.headers["Cache-Control"] = "no-store"
    return response


@routes.post("/restore")
def put() -> Response:
    """Restore the archive in the request's body."""
    s, replace = services(), flag("replace")
    request.max_content_length = _MOST_BYTES
    with restore.unpacked(request.stream, s.blobs.incoming) as unpacked, s.store.write(durable=True, removes_files=True) as session:
        done = restore.put(session, s.blobs, s.config.blobs, caller(), unpacked, _revision(session), replace=replace)
    return reply(done)


def _revision(session: Session) -> str:
    """The revision of the tables."""
    return str(session.execute(text("SELECT version_num FROM alembic_version")).scalar_one())
