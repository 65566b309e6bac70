"""Start of an instance: runs under `python -s -P -S`, with only the entries of UDO_PYTHONPATH on the module path."""

import os
import sys

if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = os.environ["UDO_PYTHONPATH"].split(os.pathsep) + [p for p in sys.path if os.path.abspath(p) != here]
    from udo_runtime.main import main

    sys.exit(main())
