"""Tests with real parts."""

import os

# As for the `udo` command (udo_cli/__init__.py).
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
