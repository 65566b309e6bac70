"""The images of containers: the runtime base of this node, the images of commands, and whole operator images pulled by digest.

The registry is asked only for what the daemon does not have.
"""

from __future__ import annotations

import contextlib
import io
import platform
import sys
import tarfile
from threading import Lock
from urllib.parse import urlsplit

import docker
import requests
from docker.errors import APIError, ImageNotFound
from docker.models.images import Image

from node_manager.settings import NodeSettings
from udo_protocol.errors import OperatorError, Unavailable, UsageError

# Labels of a base, and its place in a registry, as `udo registry base push` sets them.
PYTHON_LABEL, REPOSITORY = "dev.udo.python_tag", "udo/runtime-python"
# The local name that docker/runtime.sh gives; its tag is the interpreter's: udo-runtime-python:cp311.
LOCAL_NAME = "udo-runtime-python"
# The empty image, made here, for programs that need nothing.
EMPTY_NAME, EMPTY_LABEL = "udo-empty:2", "dev.udo.empty"
# The folder of a base with what every operator can import.
RUNTIME = "/opt/udo/runtime"


class DockerImages:
    """See the module. Unavailable at the start if there is no runtime base: nothing would run."""

    def __init__(self, client: docker.DockerClient, settings: NodeSettings) -> None:
        self._client, self._registry, self._token = client, settings.registry, settings.token
        self._lock = Lock()
        image = self._runtime(settings.runtime_image)
        self.runtime = str(image.id)
        self.python_tag = str(image.labels.get(PYTHON_LABEL, ""))
        if not self.python_tag:
            raise UsageError(
                f"the image {settings.runtime_image} has no label {PYTHON_LABEL}: it is not a runtime base; build one: docker/runtime.sh"
            )
        self.commands = self._of_commands(settings.command_image) if settings.command_image else self.runtime

    def _runtime(self, name: str) -> Image:
        tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
        local = name or f"{LOCAL_NAME}:{tag}"
        with contextlib.suppress(ImageNotFound):
            return self._client.images.get(local)
        why = "no registry is given"
        if self._registry and not name:
            try:
                return self._pull(f"{REPOSITORY}:{tag}-{platform.system().lower()}_{platform.machine()}")
            except OperatorError as e:
                why = str(e)
        raise Unavailable(
            f"the Docker daemon has no image {local}, in which operators run, and {why}. Make it with docker/runtime.sh, then publish it "
            f"for other nodes: udo registry base push {local}; or name another one: --runtime-image IMAGE"
        )

    def _of_commands(self, name: str) -> str:
        try:
            return str(self._client.images.get(name).id)
        except ImageNotFound:
            raise Unavailable(f"the Docker daemon has no image {name}, which --command-image names; pull or build it there first") from None

    def empty(self) -> str:
        """The empty image; made if it is not there. It stays, as the runtime base does."""
        with self._lock:
            try:
                return str(self._client.images.get(EMPTY_NAME).id)
            except ImageNotFound:
                name, _, tag = EMPTY_NAME.partition(":")
                self._client.api.import_image_from_data(_nothing(), name, tag, [f"LABEL {EMPTY_LABEL}=1"])
                return str(self._client.images.get(EMPTY_NAME).id)

    def pulled(self, reference: str) -> str:
        """A name by which the daemon knows `name@sha256:…` of the registry; OperatorError if it cannot be pulled."""
        with self._lock:
            return str(self._pull(reference).id)

    def drop(self, reference: str) -> None:
        """Let the daemon remove it, unless a container or another name of it still needs it."""
        with contextlib.suppress(APIError, requests.exceptions.RequestException):
            self._client.images.remove(f"{urlsplit(self._registry).netloc}/{reference}")

    def _pull(self, reference: str) -> Image:
        url = urlsplit(self._registry)
        if not url.netloc:
            raise OperatorError(
                f"the Docker daemon cannot pull {reference} from {self._registry or 'no registry'}: it takes only http and https"
            )
        name = f"{url.netloc}/{reference}"
        with contextlib.suppress(ImageNotFound):
            return self._client.images.get(name)
        where, at, digest = name.partition("@")
        tag = digest if at else where.rpartition(":")[2]
        repository = where if at else where.rpartition(":")[0]
        login = {"username": "udo", "password": self._token} if self._token else None
        try:
            return self._client.images.pull(repository, tag=tag, auth_config=login)
        except (APIError, requests.exceptions.RequestException) as e:
            raise OperatorError(f"the Docker daemon cannot pull {name}: {getattr(e, 'explanation', None) or e}") from e


def _nothing() -> bytes:
    """The archive of the empty image: a folder /tmp in which everybody may write. Without it the daemon makes one for a working directory
    below it, and gives the file system that is mounted there the mode of that folder: only root could write."""
    folder = tarfile.TarInfo("tmp")
    folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(folder)
    return archive.getvalue()
