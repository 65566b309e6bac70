"""The `udo` command."""

import os

# Spark starts its Java by a fork. With gRPC's own handling of forks, about one such child in fifty of a process that has used
# gRPC aborts before it becomes Java; nothing here uses gRPC in a forked child.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
