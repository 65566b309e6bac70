"""A caller of the hostile operator, in a process of its own, so that harm done to it is seen from outside.

`python -m benchmarks.verification.caller NODE OPERATOR ATTACK ARGUMENTS` prints one JSON object: the rows received, and the error.
"""

from __future__ import annotations

import json
import resource
import sys

from udo_interface import connect
from udo_protocol.errors import UdoError

# A caller that needs more than this for one small answer has unpacked a bomb.
MEMORY_BYTES = 4 << 30
ANSWER_S = 60.0


def main() -> None:
    """Send one event and print what came back."""
    node, operator, attack, arguments = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    rows, error, kind = 0, "", ""

    def count(_: object) -> None:
        nonlocal rows
        rows += 1

    try:
        with connect(operator, node=node) as client:
            client.add_listener(count)
            client.send({"attack": attack, "arguments": arguments})
            client.flush(ANSWER_S)
    except UdoError as e:
        error, kind = str(e), type(e).__name__
    print(json.dumps({"rows": rows, "error": error, "kind": kind}), flush=True)


if __name__ == "__main__":
    main()
