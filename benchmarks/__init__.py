"""Measurements of the platform's costs and speed: `python -m benchmarks NAME`. Nothing here is shipped."""

import os

# As for the `udo` command (udo_cli/__init__.py).
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
