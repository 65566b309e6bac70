"""Node managers for attacks that need no whole platform."""

from tests.node_manager.conftest import home, home_daemon, lane  # noqa: F401 (fixtures)
