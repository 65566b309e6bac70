"""Runs a whole image on sample events, for `udo test --image`: on a temporary platform whose node has the Docker driver.

The image thus has the limits, the isolation and the error reports of production. No container and no pulled image is left behind.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from node_manager.drivers import logfile
from udo_cli.home import Home
from udo_cli.options.daemons import UpOptions
from udo_cli.options.given import OperatorConfig
from udo_cli.packing.image import BuiltImage
from udo_cli.packing.tried import SESSION, Trial, ask
from udo_cli.packing.upload import upload
from udo_cli.platform import local, remote, throwaway
from udo_protocol.formats.manifest import Manifest
from udo_protocol.registry.api import Registry

if TYPE_CHECKING:
    import pyarrow as pa

# Time to pull and start the image, before the operator's own open_timeout_s begins.
_START_TIMEOUT_S = 120.0
# The last lines of its output that are shown.
_LOG_LINES = 200


def answer(
    manifest: Manifest,
    image: BuiltImage,
    batches: Sequence[pa.RecordBatch],
    config: OperatorConfig,
    say: Callable[[str], None],
) -> Trial:
    """Start the image and let it answer `batches` (of its input schema). Its output goes to stderr. OperatorError with traceback, event."""
    with local.interruptible(), contextlib.ExitStack() as parts:
        home = Home(parts.enter_context(throwaway.workspace("udo-trial-")) / "udo")
        forget = parts.enter_context(contextlib.ExitStack())  # after the platform has stopped, so that no container uses the image
        parts.callback(_show_log, home, manifest.name)  # once its container has ended, all of its output is there
        started = parts.enter_context(throwaway.platform(home, UpOptions(driver="docker", warm=0), say))
        api = parts.enter_context(Registry(started.registry, home.token_file.read_text("utf-8").split()[0], SESSION))
        upload(api, manifest, image, lambda _: None)
        forget.callback(_forget, f"{urlsplit(started.registry).netloc}/{manifest.name}@{image.digest}")
        api.deploy(manifest.name, manifest.name, manifest.version, env=config.env, secrets=config.secrets, files=config.files)
        remote.await_answering(api, manifest.name, _START_TIMEOUT_S + manifest.limits.open_timeout_s, say)
        return ask(started.node, manifest, batches)


def _show_log(home: Home, name: str) -> None:
    kept = sorted((home.node / "logs").glob(f"{name}-*/*.log"))
    for line in [line for path in kept for line in logfile.tail(path, 0)][-_LOG_LINES:]:
        click.echo(logfile.split_stamp(line)[1], err=True)


def _forget(name: str) -> None:
    """Remove the image that the Docker daemon has pulled for this run; layers of other images stay."""
    import docker
    import requests
    from docker.errors import DockerException

    with contextlib.suppress(DockerException, requests.exceptions.RequestException), contextlib.closing(docker.from_env()) as client:
        client.images.remove(name)
