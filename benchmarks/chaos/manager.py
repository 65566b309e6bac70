"""A node manager whose instances start through benchmarks/chaos/inside.py; the arguments are those of node_manager."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.chaos import canary_orders
from node_manager.__main__ import main
from node_manager.drivers import runtime_base
from node_manager.servers import embedded
from udo_protocol.queue import slot

_CUT = ("if route ~= a[4] then", "if tonumber(route) < tonumber(a[4]) then")


def without_cut() -> str:
    """Return the server functions, changed so that a slot also takes frames by an older group map."""
    whole = slot.lua_source()
    assert whole.count(_CUT[0]) == 1
    return whole.replace(*_CUT)


def lacks(name: str) -> bool:
    """Whether this node must lack this rule."""
    told = Path(sys.argv[sys.argv.index("--home") + 1]) / "chaos" / "broken"
    return told.exists() and told.read_text() == name


if __name__ == "__main__":
    runtime_base.bootstrap = lambda: Path(__file__).with_name("inside.py")
    canary_orders.install()
    if lacks("cut"):
        embedded.lua_source = without_cut  # type: ignore[attr-defined]
    sys.argv += ["--sandbox", "none"]  # instances get orders as files beside the sockets, and report by their own pids
    sys.exit(main())
