"""The names that an operator's author imports: `operator` for functions on record batches, `Operator` for classes.

Needs neither PySpark nor gRPC nor Flask; runs in its own process with the operator's own dependencies.
"""

from udo_runtime.sdk.api import Context, Operator, operator
from udo_runtime.sdk.frame_keys import FrameKeys, FrameStates

__all__ = ["Context", "FrameKeys", "FrameStates", "Operator", "operator"]
