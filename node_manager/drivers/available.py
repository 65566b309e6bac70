"""The available drivers, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog

from node_manager.drivers import runtime_base, sandbox
from node_manager.drivers.base import Driver
from node_manager.drivers.process import ProcessDriver
from node_manager.settings import NodeSettings
from udo_protocol.errors import UsageError

_log = structlog.get_logger()


def _process(settings: NodeSettings) -> Driver:
    if settings.sandbox == "none":
        return ProcessDriver()
    settings.prepare()
    box, remark = sandbox.find(settings.sockets.absolute(), runtime_base.build(settings.runtime_base.absolute()))
    _log.info("sandbox found", remark=remark) if box else _log.warning("operators are not isolated", remark=remark)
    return ProcessDriver(box, remark)


def _docker(settings: NodeSettings) -> Driver:
    from node_manager.drivers.docker import DockerDriver  # the SDK takes 0.2 s to import

    return DockerDriver(settings)


DRIVERS: Mapping[str, Callable[[NodeSettings], Driver]] = {"process": _process, "docker": _docker}


def make(settings: NodeSettings) -> Driver:
    """Make the driver named in the settings."""
    if settings.driver not in DRIVERS:
        raise UsageError(f"no driver {settings.driver!r}; there are: {', '.join(DRIVERS)}")
    return DRIVERS[settings.driver](settings)
