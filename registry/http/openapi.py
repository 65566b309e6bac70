"""The description of the HTTP API, served at /openapi.json. A test compares it with the routes; nothing depends on it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from registry.domain import deployments, draining, failover, group_maps, nodes, placements
from registry.domain.application_managers import ToldBody
from registry.domain.applications import ChangedApplication, NewApplication
from udo_protocol.formats.media_types import OCI_MANIFEST
from udo_protocol.registry.wanted import NodeReport

Json = dict[str, Any]
_REF = "#/components/schemas/{model}"
_DIGEST = r"^(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$"
_STRINGS: dict[str, Json] = {
    "name": {"pattern": r"^[a-z0-9]+([._-][a-z0-9]+)*$", "maxLength": 60},
    "ref": {"pattern": r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"},
    "digest": {"pattern": _DIGEST},
    "upload_id": {"pattern": "^[0-9a-f]{48}$"},
    "update_id": {"pattern": "^[0-9a-f]{16}$"},
    "node": {"pattern": r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"},
}
_PAGE = ("n", "last")
# Query parameter -> its schema.
_QUERY: dict[str, Json] = {
    "n": {"type": "integer", "minimum": 0},
    "last": {"type": "string"},
    "digest": {"type": "string", "pattern": _DIGEST},
    "mount": {"type": "string", "pattern": _DIGEST},
    "from": {"type": "string"},
    "artifactType": {"type": "string"},
    "deployment": {"type": "string"},
    "limit": {"type": "integer", "minimum": 0},
    "after": {"type": "integer", "minimum": -1},
    "drop_state": {"type": "boolean"},
    "force": {"type": "boolean"},
    "replace": {"type": "boolean"},
    "wait_s": {"type": "number", "minimum": 0, "maximum": 0.01},
}
_OCTETS = "application/octet-stream"
_REPOSITORY, _UPLOAD = "/v2/{name}", "/v2/{name}/blobs/uploads/{upload_id}"
_VERSION, _DEPLOYMENT, _NODE = "/api/v1/operators/{name}/versions/{ref}", "/api/v1/deployments/{name}", "/api/v1/nodes/{node}"
_APPLICATION = "/api/v1/applications/{name}"
_WRITES_WITHOUT_TOKEN = (_DEPLOYMENT + "/plans",)
_READS_WITH_TOKEN = (_NODE + "/wanted", _UPLOAD, "/v2/", "/api/v1/audit", "/api/v1/backup")

# (method, path, summary, statuses of success, query parameters, body: a model, a media type or nothing)
_OPERATIONS: list[tuple[str, str, str, tuple[int, ...], tuple[str, ...], type[BaseModel] | str | None]] = [
    ("get", "/healthz", "Whether the registry answers", (200,), (), None),
    ("get", "/metrics", "Figures for Prometheus", (200,), (), None),
    ("get", "/openapi.json", "This description", (200,), (), None),
    ("get", "/v2/", "Whether this is an OCI registry, and how to authenticate", (200,), (), None),
    ("get", "/v2/token", "A token in exchange for the password", (200,), (), None),
    ("get", "/v2/_catalog", "Repositories", (200,), _PAGE, None),
    ("get", _REPOSITORY + "/tags/list", "Tags", (200,), _PAGE, None),
    ("get", _REPOSITORY + "/referrers/{digest}", "Manifests attached to one", (200,), ("artifactType", *_PAGE), None),
    ("get", _REPOSITORY + "/manifests/{ref}", "A manifest by tag or digest", (200,), (), None),
    ("head", _REPOSITORY + "/manifests/{ref}", "Whether a manifest is there", (200,), (), None),
    ("put", _REPOSITORY + "/manifests/{ref}", "Store a manifest", (201,), (), OCI_MANIFEST),
    ("delete", _REPOSITORY + "/manifests/{ref}", "Remove a tag or a manifest", (202,), (), None),
    ("get", _REPOSITORY + "/blobs/{digest}", "A blob, or a range of it", (200, 206), (), None),
    ("head", _REPOSITORY + "/blobs/{digest}", "Whether a blob is there", (200,), (), None),
    ("delete", _REPOSITORY + "/blobs/{digest}", "Forget a blob", (202,), (), None),
    ("post", _REPOSITORY + "/blobs/uploads/", "Begin an upload, or mount a blob", (201, 202), ("digest", "mount", "from"), _OCTETS),
    ("get", _UPLOAD, "The status of an upload", (204,), (), None),
    ("patch", _UPLOAD, "The next chunk", (202,), (), _OCTETS),
    ("put", _UPLOAD, "The last chunk, and the digest of all", (201,), ("digest",), _OCTETS),
    ("delete", _UPLOAD, "Cancel an upload", (204,), (), None),
    ("get", "/api/v1/operators", "Operators and their versions", (200,), (), None),
    ("get", _VERSION, "One version", (200,), (), None),
    ("delete", _VERSION, "Forget a version; if a deployment would go back to it, only with force", (200,), ("force",), None),
    ("post", "/api/v1/gc", "Remove unused blobs and uploads", (200,), (), "GcBody"),
    ("get", "/api/v1/backup", "All that the registry has, as one archive", (200,), (), None),
    ("post", "/api/v1/restore", "A backup in the place of what there is", (200,), ("replace",), _OCTETS),
    ("get", "/api/v1/deployments", "Deployments", (200,), (), None),
    ("post", "/api/v1/deployments", "Deploy", (200, 201), (), deployments.NewDeployment),
    ("get", _DEPLOYMENT, "One deployment", (200,), (), None),
    ("delete", _DEPLOYMENT, "Undeploy; if it has state or dead letters, only with drop_state", (200,), ("drop_state",), None),
    (
        "post",
        _DEPLOYMENT + "/scale",
        "Change the number of slots on each node, and who decides about it",
        (200,),
        (),
        deployments.ScaleBody,
    ),
    ("post", _DEPLOYMENT + "/replicas", "A replica holds what its slot has ENDed", (200,), (), failover.InStepBody),
    ("post", _DEPLOYMENT + "/moves", "A step of a move of key groups between nodes", (200,), (), placements.MoveBody),
    ("post", _DEPLOYMENT + "/plans", "The number of a plan that calls it, higher than all before", (200,), (), None),
    ("post", _DEPLOYMENT + "/epochs", "The version that serves an epoch", (200,), (), "EpochBody"),
    ("get", _DEPLOYMENT + "/group-maps", "The home of each keyed session's state", (200,), (), None),
    ("post", _DEPLOYMENT + "/group-maps", "A node is about to serve a session", (200,), (), group_maps.ClaimBody),
    ("post", _DEPLOYMENT + "/group-maps/release", "Release a session from its home", (200,), (), group_maps.ReleaseBody),
    ("post", _DEPLOYMENT + "/update", "Live update", (200, 202), (), "UpdateBody"),
    ("post", _DEPLOYMENT + "/rollback", "Roll back to a former version", (200, 202), (), "UpdateBody"),
    ("post", _DEPLOYMENT + "/promote", "End the canary under way as one that has passed", (200, 202), (), None),
    ("get", "/api/v1/updates/{update_id}", "An update", (200,), (), None),
    ("get", "/api/v1/updates/{update_id}/events", "Its progress as server-sent events", (200,), (), None),
    ("get", "/api/v1/audit", "Who did what", (200,), ("deployment", "limit"), None),
    ("get", "/api/v1/nodes", "Nodes", (200,), (), None),
    ("delete", _NODE, "A node leaves", (200,), (), None),
    ("post", _NODE + "/heartbeat", "A node lives", (200,), (), nodes.Heartbeat),
    ("post", _NODE + "/drain", "A node is to have no slots of deployments over nodes", (200,), (), draining.DrainBody),
    ("get", _NODE + "/wanted", "The wanted state of a node", (200,), ("after", "wait_s"), None),
    ("post", _NODE + "/report", "The report of a node", (200,), (), NodeReport),
    ("post", _NODE + "/proposals", "What a node's Operator Managers propose; the answer has what is granted", (200,), (), ToldBody),
    ("get", "/api/v1/applications", "Applications", (200,), (), None),
    ("post", "/api/v1/applications", "Name deployments together, with an SLA", (200, 201), (), NewApplication),
    ("get", _APPLICATION, "One application, and how it fares", (200,), (), None),
    ("post", _APPLICATION, "Change it", (200,), (), ChangedApplication),
    ("delete", _APPLICATION, "Remove it; its deployments stay", (200,), (), None),
    ("get", _APPLICATION + "/journal", "What its manager has decided, and by which figures", (200,), (), None),
]


def describe() -> Json:
    """The whole OpenAPI document."""
    from registry.http import api  # serves the routes that this module describes

    named: dict[str, type[BaseModel]] = {m.__name__: m for m in (api.GcBody, api.EpochBody, api.UpdateBody)}
    models = [*named.values(), *(b for *_, b in _OPERATIONS if isinstance(b, type))]
    _, definitions = models_json_schema([(m, "validation") for m in models], ref_template=_REF)
    paths: dict[str, Json] = {}
    for method, path, summary, statuses, query, body in _OPERATIONS:
        bearer = path in _READS_WITH_TOKEN if method in ("get", "head") else path not in _WRITES_WITHOUT_TOKEN
        operation: Json = {
            "summary": summary,
            "operationId": f"{method} {path}",
            "parameters": [
                *({"name": n, "in": "path", "required": True, "schema": {"type": "string", **_STRINGS[n]}} for n in _names(path)),
                *({"name": n, "in": "query", "schema": _QUERY[n]} for n in query),
            ],
            "responses": {**{str(s): {"description": "done"} for s in statuses}, "default": _error(path)},
            "security": [{"token": []}, {"password": []}] if bearer else [],
        }
        if body is not None:
            operation["requestBody"] = {"content": _content(named[body] if isinstance(body, str) and body in named else body)}
        paths.setdefault(path, {})[method] = operation
    schemes = {"token": {"type": "http", "scheme": "bearer"}, "password": {"type": "http", "scheme": "basic"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "udo registry", "version": "1", "description": "OCI distribution API, operator catalogue and deployments."},
        "paths": paths,
        "components": {"schemas": {**definitions.get("$defs", {}), **_ERRORS}, "securitySchemes": schemes},
    }


def _names(path: str) -> list[str]:
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]


def _content(body: type[BaseModel] | str) -> Json:
    if not isinstance(body, str):
        return {"application/json": {"schema": {"$ref": _REF.format(model=body.__name__)}}}
    return {body: {"schema": {"type": "string", "format": "binary"} if body == _OCTETS else {"type": "object"}}}


def _error(path: str) -> Json:
    model = "OciErrors" if path.startswith("/v2/") else "Error"
    return {"description": "refused", "content": {"application/json": {"schema": {"$ref": _REF.format(model=model)}}}}


_ERRORS: Json = {
    "Error": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["code", "message", "retry"],
                "properties": {"code": {"type": "string"}, "message": {"type": "string"}, "retry": {"type": "boolean"}},
            }
        },
    },
    "OciErrors": {
        "type": "object",
        "required": ["errors"],
        "properties": {
            "errors": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "required": ["code", "message"],
                    "properties": {"code": {"type": "string", "pattern": "^[A-Z_]+$"}, "message": {"type": "string"}},
                },
            }
        },
    },
}
