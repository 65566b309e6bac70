"""Errors on the wire: google.rpc.Status with an ErrorInfo whose reason is the error's code. See udo_protocol.node.api."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import grpc
import structlog
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from udo_protocol.errors import Conflict, NotFound, OperatorError, UdoError, Unauthorized, Unavailable, UsageError, WaitTimeout

_log = structlog.get_logger()
T = TypeVar("T")
# The first that fits counts; tools that know nothing of ErrorInfo still see a sensible status.
_CODES: tuple[tuple[type[UdoError], int], ...] = (
    (NotFound, code_pb2.NOT_FOUND),
    (Conflict, code_pb2.FAILED_PRECONDITION),
    (Unauthorized, code_pb2.UNAUTHENTICATED),
    (UsageError, code_pb2.INVALID_ARGUMENT),
    (WaitTimeout, code_pb2.DEADLINE_EXCEEDED),
    (Unavailable, code_pb2.UNAVAILABLE),
    (OperatorError, code_pb2.ABORTED),
)
# An error travels in trailing metadata, twice; peers accept this much (udo_protocol.node.api sets it on its side).
MESSAGE_CHARACTERS = 6000


def status_of(error: UdoError) -> status_pb2.Status:
    """The error as google.rpc.Status; the middle of a long message is left out."""
    code = next((c for cls, c in _CODES if isinstance(error, cls)), code_pb2.UNKNOWN)
    text = shortened(str(error))
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.ErrorInfo(reason=error.code, domain="udo", metadata={"retry": str(error.retry).lower()}))
    return status_pb2.Status(code=code, message=text, details=[detail])


def shortened(text: str) -> str:
    """The message, without its middle if it is too long to travel."""
    half = MESSAGE_CHARACTERS // 2
    return text if len(text) <= MESSAGE_CHARACTERS else f"{text[:half]}\n...\n{text[-half:]}"


def refuse(context: grpc.ServicerContext, error: Exception) -> None:
    """End the call with this error."""
    if not isinstance(error, UdoError):
        _log.exception("call failed")
        error = UdoError(f"the node manager failed: {type(error).__name__}: {error}; see its log")
    context.abort_with_status(rpc_status.to_status(status_of(error)))


def unary(method: Callable[[Any, Any, grpc.ServicerContext], T]) -> Callable[[Any, Any, grpc.ServicerContext], T]:
    """A method that may raise our errors."""

    def call(self: Any, request: Any, context: grpc.ServicerContext) -> T:
        try:
            return method(self, request, context)
        except Exception as e:
            refuse(context, e)
            raise

    return call


def stream(method: Callable[[Any, Any, grpc.ServicerContext], Iterator[T]]) -> Callable[[Any, Any, grpc.ServicerContext], Iterator[T]]:
    """A streaming method that may raise our errors."""

    def call(self: Any, request: Any, context: grpc.ServicerContext) -> Iterator[T]:
        try:
            yield from method(self, request, context)
        except Exception as e:
            refuse(context, e)

    return call
