"""python -m tests.model [--large] [--case NAME] [--without RULE]: explore the protocol, and print the result.

Exit status: 0 everything held, 1 something did not, 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import sys

from tests.model.cases import CASES, LARGE, SMALL
from tests.model.explore import explore
from tests.model.rules import WHY, Rules
from tests.model.scope import Scope


def main() -> int:
    """Run the command; see the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description="Explicit-state model of the keyed slot protocol.")
    parser.add_argument("--large", action="store_true", help="the large cases, minutes each, instead of the small ones")
    parser.add_argument("--case", choices=CASES, metavar="NAME", help="one case: " + ", ".join(CASES))
    parser.add_argument("--without", choices=WHY, metavar="RULE", help="switch a rule off: " + ", ".join(WHY))
    parser.add_argument("--max-states", type=int, default=20_000_000, help="stop after that many states (BOUNDED); about 0.4 kB each")
    options = parser.parse_args()
    rules = Rules()
    if options.without:
        rules = rules.without(options.without)
        print(f"without {options.without}: {WHY[options.without]}")
    violated = False
    for case in (CASES[options.case],) if options.case else LARGE if options.large else SMALL:
        found = explore(Scope(case, rules), options.max_states)
        print(f"{case.name:14} {found}  {case.why}", flush=True)
        if found.problem:
            violated = True
            for number, text in enumerate(found.trace, 1):
                print(f"  {number:3}. {text}")
            print(f"  => {found.problem}", flush=True)
    return int(violated)


if __name__ == "__main__":
    sys.exit(main())
