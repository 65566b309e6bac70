"""The `udo` command."""

import os

# Spark starts its Java by a fork. With gRPC's own handling of forks, about one such child in fifty aborts before it becomes Java, if
# the parent has used gRPC; no forked child of udo uses gRPC.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
