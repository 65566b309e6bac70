"""python -m tests.mutations [NAME ...]: put each fault into a copy of the product, and see its test fail.

Exit status: 0 each was noticed, 1 one was not (or its test fails even without it), 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.mutations.run import copy, noticed, run
from tests.mutations.table import MUTATIONS


def main() -> int:
    """Run the command; see the module."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutations", description="Faults put into a copy of the product, and the tests that notice them."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these: " + ", ".join(MUTATIONS))
    parser.add_argument("--no-baseline", action="store_true", help="do not first run the tests on the unchanged copy")
    parser.add_argument("--gate", action="store_true", help="by what of the tests the gate has: which faults would it notice alone?")
    options = parser.parse_args()
    if unknown := set(options.names) - set(MUTATIONS):
        parser.error(f"expected names of mutations, got {', '.join(sorted(unknown))}; see --help")
    wanted = {n: MUTATIONS[n] for n in options.names or MUTATIONS}
    unnoticed = 0
    with copy() as top:
        if not options.no_baseline:
            tests = sorted({m.test for m in wanted.values()})
            print(f"{len(tests)} tests on the unchanged copy", flush=True)
            if (whole := run(top, tests, gate=options.gate)).returncode:
                print(whole.stdout[-5000:], whole.stderr[-2000:])
                return 1
        for name, mutation in wanted.items():
            since = time.monotonic()
            wrong = noticed(top, mutation, gate=options.gate)
            print(f"{name:32} {'NOT NOTICED' if wrong else 'noticed'} ({time.monotonic() - since:.0f} s)", flush=True)
            if wrong:
                unnoticed += 1
                print(wrong)
    return int(unnoticed > 0)


if __name__ == "__main__":
    sys.exit(main())
