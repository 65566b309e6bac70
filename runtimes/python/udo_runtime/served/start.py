"""Start of a Python operator in a process of its own: runs under `python -s -P -S`, with the entries of UDO_PYTHONPATH on the module path.

Arguments: the entry point `module:attribute`, the operator's name, its version.
"""

import os
import sys

if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = os.environ["UDO_PYTHONPATH"].split(os.pathsep) + [p for p in sys.path if os.path.abspath(p) != here]
    from udo_runtime.served.entry import main

    main(*sys.argv[1:])
