"""A node manager whose instances start through benchmarks/chaos/inside.py; the arguments are those of node_manager."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.chaos import canary_orders
from node_manager.__main__ import main
from node_manager.instances import runtime_base

if __name__ == "__main__":
    runtime_base.bootstrap = lambda: Path(__file__).with_name("inside.py")
    canary_orders.install()
    sys.argv += ["--sandbox", "none"]  # orders come to an instance as files beside the sockets, and it says by its own pid that one fired
    sys.exit(main())
