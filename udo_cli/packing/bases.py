"""Runtime bases: whole images that `udo push` puts below an operator's layers, so that it runs as a container.

They lie in repositories `udo/runtime-<runtime>` of the registry, one tag per interpreter and platform.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from udo_cli.output import short
from udo_cli.packing import image, upload
from udo_cli.packing.archive import Archive
from udo_cli.packing.build import Target
from udo_cli.packing.image import BaseImage
from udo_protocol.errors import NotFound, Unavailable, UsageError
from udo_protocol.registry.api import Registry
from udo_protocol.registry.content import digest_of, parse_json

# Labels of a base image, so that nobody has to say again what it is.
RUNTIME_LABEL, PYTHON_LABEL = "dev.udo.runtime", "dev.udo.python_tag"


def repository(runtime: str) -> str:
    """Where the bases of a runtime lie. With a slash, so that no operator can have that name."""
    return f"udo/runtime-{runtime}"


def tag(python_tag: str, platform: str) -> str:
    """`cp311-linux_x86_64`."""
    return f"{python_tag}-{platform}"


def find(api: Registry, runtime: str, python_tag: str, platform: str) -> BaseImage | None:
    """The base of that runtime, interpreter and platform; None when the registry holds none."""
    try:
        return read(api, repository(runtime), tag(python_tag, platform))
    except NotFound:
        return None


def choose(api: Registry | None, runtime: str, target: Target, wish: str | None, say: Callable[[str], None]) -> BaseImage | None:
    """The base to put below an operator: the one wished for (`repository:tag`, or `none`), else the registry's for the target.

    Without one the image has no interpreter, and runs only where the node has that one itself. That is said where it may matter: when the
    operator is packed for another Python or platform than this machine's, or a node runs containers.
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
        say(f"base: {why}; this version needs nodes that have this Python themselves. Publish one with: udo registry base push IMAGE")
    return found


def read(api: Registry, where: str, ref: str) -> BaseImage:
    """The base in this repository under this tag or digest; NotFound if there is none."""
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
    """Bring an image into the registry as the base of its runtime; (reference, digest). Replaces the one before."""
    labels: Mapping[str, Any] = (archive.config.get("config") or {}).get("Labels") or {}
    python_tag = python_tag or labels.get(PYTHON_LABEL)
    if not python_tag:
        raise UsageError(f"the image has no label {PYTHON_LABEL} that says which Python is in it: give --python, such as --python 3.11")
    where, ref = repository(str(labels.get(RUNTIME_LABEL, "python"))), tag(python_tag, image.platform_of(archive.config))
    made = image.plain(archive.config, archive.layers)
    upload.send(api, where, made, say)
    upload.put(api, where, ref, made)
    return f"{where}:{ref}", made.digest
