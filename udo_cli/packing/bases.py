"""Runtime bases: images on which `udo push` puts an operator's layers, so that it can run as a container.

They are stored in the registry's repositories `udo/runtime-<runtime>`, with one tag for each interpreter and platform.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from udo_cli.packing import image, upload
from udo_cli.packing.archive import Archive
from udo_cli.packing.build import Target
from udo_cli.packing.image import BaseImage
from udo_cli.text.output import short
from udo_protocol.errors import NotFound, Unavailable, UsageError
from udo_protocol.registry.api import Registry
from udo_protocol.registry.content import digest_of, parse_json

# Labels of a base image: its runtime and its Python.
RUNTIME_LABEL, PYTHON_LABEL = "dev.udo.runtime", "dev.udo.python_tag"


def repository(runtime: str) -> str:
    """The repository of a runtime's bases. Its name has a slash, which names of operators cannot have."""
    return f"udo/runtime-{runtime}"


def tag(python_tag: str, platform: str) -> str:
    """The tag of a base, such as `cp311-linux_x86_64`."""
    return f"{python_tag}-{platform}"


def find(api: Registry, runtime: str, python_tag: str, platform: str) -> BaseImage | None:
    """The base of a runtime, interpreter and platform; None if the registry has none."""
    try:
        return read(api, repository(runtime), tag(python_tag, platform))
    except NotFound:
        return None


def choose(api: Registry | None, runtime: str, target: Target, wish: str | None, say: Callable[[str], None]) -> BaseImage | None:
    """The base for an operator: the one given with --base (`wish`: `repository:tag`, or `none`), else the registry's for `target`.

    Without a base the image has no interpreter, and runs only on nodes that have this interpreter themselves. `say` gets a remark if that
    may matter: if the operator is packed for another Python or platform than this machine's, or if a node runs containers.
    """
    if wish == "none":
        return None
    if wish is not None and api is None:
        raise Unavailable(f"no registry answers, so the base {wish} cannot be read; start one with: udo up, or set UDO_REGISTRY")
    if wish is not None and api is not None:
        where, _, ref = wish.rpartition(":")
        if not where:
            raise UsageError(f"--base {wish}: expected REPOSITORY:TAG of this registry, or none")
        return read(api, where, ref)
    found = find(api, runtime, target.python_tag, target.platform) if api is not None else None
    if found is not None:
        say(f"base: {found.reference} ({short(found.digest)})")
    elif not target.here or (api is not None and any(node["driver"] == "docker" for node in api.nodes())):
        why = "no registry answers" if api is None else f"the registry has none for {target.python_tag} {target.platform}"
        say(f"base: {why}; this version runs only on nodes that have this Python. Publish a base with: udo registry base push IMAGE")
    return found


def read(api: Registry, where: str, ref: str) -> BaseImage:
    """The base with this tag or digest in this repository. NotFound if there is none, UsageError if it is not an image."""
    body = api.manifest(where, ref)
    manifest = parse_json(body, f"manifest of {where}:{ref}")
    try:
        config, layers = manifest["config"]["digest"], tuple(manifest["layers"])
    except (KeyError, TypeError):
        raise UsageError(f"{where}:{ref} is no image but {manifest.get('mediaType')}; a base is an image for one platform") from None
    found = parse_json(api.blob(where, config), f"config of {where}:{ref}")
    if len((found.get("rootfs") or {}).get("diff_ids") or ()) != len(layers):
        raise UsageError(f"{where}:{ref}: its config names other layers than its manifest; publish the base again")
    return BaseImage(where, ref, digest_of(body), found, layers)


def publish(api: Registry, archive: Archive, python_tag: str | None, say: Callable[[str], None]) -> tuple[str, str]:
    """Publish an image as the base of its runtime, in place of the former one; returns (reference, digest)."""
    labels: Mapping[str, Any] = (archive.config.get("config") or {}).get("Labels") or {}
    python_tag = python_tag or labels.get(PYTHON_LABEL)
    if not python_tag:
        raise UsageError(f"the image has no label {PYTHON_LABEL} that says which Python is in it: give --python, such as --python 3.11")
    where, ref = repository(str(labels.get(RUNTIME_LABEL, "python"))), tag(python_tag, image.platform_of(archive.config))
    made = image.plain(archive.config, archive.layers)
    upload.send(api, where, made, say)
    upload.put(api, where, ref, made)
    return f"{where}:{ref}", made.digest
