from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class UDFWorkerDataFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UDF_WORKER_DATA_FORMAT_UNSPECIFIED: _ClassVar[UDFWorkerDataFormat]
    ARROW: _ClassVar[UDFWorkerDataFormat]
UDF_WORKER_DATA_FORMAT_UNSPECIFIED: UDFWorkerDataFormat
ARROW: UDFWorkerDataFormat

class UdfRequest(_message.Message):
    __slots__ = ("control", "data")
    CONTROL_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    control: UdfControlRequest
    data: DataRequest
    def __init__(self, control: _Optional[_Union[UdfControlRequest, _Mapping]] = ..., data: _Optional[_Union[DataRequest, _Mapping]] = ...) -> None: ...

class UdfResponse(_message.Message):
    __slots__ = ("control", "data")
    CONTROL_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    control: UdfControlResponse
    data: DataResponse
    def __init__(self, control: _Optional[_Union[UdfControlResponse, _Mapping]] = ..., data: _Optional[_Union[DataResponse, _Mapping]] = ...) -> None: ...

class UdfControlRequest(_message.Message):
    __slots__ = ("init", "payload", "finish", "cancel")
    INIT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    init: Init
    payload: PayloadChunk
    finish: Finish
    cancel: Cancel
    def __init__(self, init: _Optional[_Union[Init, _Mapping]] = ..., payload: _Optional[_Union[PayloadChunk, _Mapping]] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ...) -> None: ...

class UdfControlResponse(_message.Message):
    __slots__ = ("init", "finish", "cancel", "error")
    INIT_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    init: InitResponse
    finish: FinishResponse
    cancel: CancelResponse
    error: ErrorResponse
    def __init__(self, init: _Optional[_Union[InitResponse, _Mapping]] = ..., finish: _Optional[_Union[FinishResponse, _Mapping]] = ..., cancel: _Optional[_Union[CancelResponse, _Mapping]] = ..., error: _Optional[_Union[ErrorResponse, _Mapping]] = ...) -> None: ...

class Init(_message.Message):
    __slots__ = ("protocol_version", "data_format", "udf", "is_chunking_payload", "input_schema", "output_schema", "task_context", "session_conf", "timezone")
    class TaskContextEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class SessionConfEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    DATA_FORMAT_FIELD_NUMBER: _ClassVar[int]
    UDF_FIELD_NUMBER: _ClassVar[int]
    IS_CHUNKING_PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    INPUT_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    TASK_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    SESSION_CONF_FIELD_NUMBER: _ClassVar[int]
    TIMEZONE_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    data_format: UDFWorkerDataFormat
    udf: UdfPayload
    is_chunking_payload: bool
    input_schema: bytes
    output_schema: bytes
    task_context: _containers.ScalarMap[str, str]
    session_conf: _containers.ScalarMap[str, str]
    timezone: str
    def __init__(self, protocol_version: _Optional[int] = ..., data_format: _Optional[_Union[UDFWorkerDataFormat, str]] = ..., udf: _Optional[_Union[UdfPayload, _Mapping]] = ..., is_chunking_payload: _Optional[bool] = ..., input_schema: _Optional[bytes] = ..., output_schema: _Optional[bytes] = ..., task_context: _Optional[_Mapping[str, str]] = ..., session_conf: _Optional[_Mapping[str, str]] = ..., timezone: _Optional[str] = ...) -> None: ...

class UdfPayload(_message.Message):
    __slots__ = ("payload", "format", "payload_size", "name", "eval_type", "payload_crc32")
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_SIZE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    EVAL_TYPE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_CRC32_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    format: str
    payload_size: int
    name: str
    eval_type: str
    payload_crc32: int
    def __init__(self, payload: _Optional[bytes] = ..., format: _Optional[str] = ..., payload_size: _Optional[int] = ..., name: _Optional[str] = ..., eval_type: _Optional[str] = ..., payload_crc32: _Optional[int] = ...) -> None: ...

class PayloadChunk(_message.Message):
    __slots__ = ("data", "last")
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    last: bool
    def __init__(self, data: _Optional[bytes] = ..., last: _Optional[bool] = ...) -> None: ...

class DataRequest(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class DataResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class InitResponse(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: ExecutionError
    def __init__(self, error: _Optional[_Union[ExecutionError, _Mapping]] = ...) -> None: ...

class FinishResponse(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: ExecutionError
    def __init__(self, error: _Optional[_Union[ExecutionError, _Mapping]] = ...) -> None: ...

class CancelResponse(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: ExecutionError
    def __init__(self, error: _Optional[_Union[ExecutionError, _Mapping]] = ...) -> None: ...

class ErrorResponse(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: ExecutionError
    def __init__(self, error: _Optional[_Union[ExecutionError, _Mapping]] = ...) -> None: ...

class ExecutionError(_message.Message):
    __slots__ = ("user", "worker", "protocol")
    USER_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    user: UserError
    worker: WorkerError
    protocol: ProtocolError
    def __init__(self, user: _Optional[_Union[UserError, _Mapping]] = ..., worker: _Optional[_Union[WorkerError, _Mapping]] = ..., protocol: _Optional[_Union[ProtocolError, _Mapping]] = ...) -> None: ...

class UserError(_message.Message):
    __slots__ = ("message", "traceback", "error_class")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    ERROR_CLASS_FIELD_NUMBER: _ClassVar[int]
    message: str
    traceback: str
    error_class: str
    def __init__(self, message: _Optional[str] = ..., traceback: _Optional[str] = ..., error_class: _Optional[str] = ...) -> None: ...

class WorkerError(_message.Message):
    __slots__ = ("message", "traceback")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    message: str
    traceback: str
    def __init__(self, message: _Optional[str] = ..., traceback: _Optional[str] = ...) -> None: ...

class ProtocolError(_message.Message):
    __slots__ = ("message",)
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    message: str
    def __init__(self, message: _Optional[str] = ...) -> None: ...
