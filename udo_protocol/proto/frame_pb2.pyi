from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KIND_UNSPECIFIED: _ClassVar[Kind]
    DATA: _ClassVar[Kind]
    END: _ClassVar[Kind]
    ANSWER: _ClassVar[Kind]
    ERROR: _ClassVar[Kind]
    SKIPPED: _ClassVar[Kind]
    STALE: _ClassVar[Kind]
    RESTORE: _ClassVar[Kind]
    STATE: _ClassVar[Kind]
    HANDOVER: _ClassVar[Kind]
    PREPARE: _ClassVar[Kind]
    ADOPT: _ClassVar[Kind]
KIND_UNSPECIFIED: Kind
DATA: Kind
END: Kind
ANSWER: Kind
ERROR: Kind
SKIPPED: Kind
STALE: Kind
RESTORE: Kind
STATE: Kind
HANDOVER: Kind
PREPARE: Kind
ADOPT: Kind

class Label(_message.Message):
    __slots__ = ("run", "epoch", "attempt")
    RUN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    run: int
    epoch: int
    attempt: int
    def __init__(self, run: _Optional[int] = ..., epoch: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("code", "message", "traceback", "event", "retry", "operator", "instance")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    traceback: str
    event: str
    retry: bool
    operator: str
    instance: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., traceback: _Optional[str] = ..., event: _Optional[str] = ..., retry: _Optional[bool] = ..., operator: _Optional[str] = ..., instance: _Optional[str] = ...) -> None: ...

class FrameHeader(_message.Message):
    __slots__ = ("lane", "number", "kind", "rows", "schema", "label", "partition", "session", "trace", "version", "groups", "failure", "void", "start_empty", "job", "strict", "since", "epochs", "behind", "full", "offset", "highest_us", "highest_us_of", "state_version", "copy", "run_before")
    class HighestUsOfEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    LANE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    VOID_FIELD_NUMBER: _ClassVar[int]
    START_EMPTY_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_US_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_US_OF_FIELD_NUMBER: _ClassVar[int]
    STATE_VERSION_FIELD_NUMBER: _ClassVar[int]
    COPY_FIELD_NUMBER: _ClassVar[int]
    RUN_BEFORE_FIELD_NUMBER: _ClassVar[int]
    lane: str
    number: int
    kind: Kind
    rows: int
    schema: bytes
    label: Label
    partition: int
    session: str
    trace: bytes
    version: str
    groups: _containers.RepeatedScalarFieldContainer[int]
    failure: Failure
    void: bool
    start_empty: bool
    job: bool
    strict: bool
    since: int
    epochs: _containers.RepeatedScalarFieldContainer[int]
    behind: bool
    full: bool
    offset: int
    highest_us: int
    highest_us_of: _containers.ScalarMap[str, int]
    state_version: int
    copy: str
    run_before: int
    def __init__(self, lane: _Optional[str] = ..., number: _Optional[int] = ..., kind: _Optional[_Union[Kind, str]] = ..., rows: _Optional[int] = ..., schema: _Optional[bytes] = ..., label: _Optional[_Union[Label, _Mapping]] = ..., partition: _Optional[int] = ..., session: _Optional[str] = ..., trace: _Optional[bytes] = ..., version: _Optional[str] = ..., groups: _Optional[_Iterable[int]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., void: _Optional[bool] = ..., start_empty: _Optional[bool] = ..., job: _Optional[bool] = ..., strict: _Optional[bool] = ..., since: _Optional[int] = ..., epochs: _Optional[_Iterable[int]] = ..., behind: _Optional[bool] = ..., full: _Optional[bool] = ..., offset: _Optional[int] = ..., highest_us: _Optional[int] = ..., highest_us_of: _Optional[_Mapping[str, int]] = ..., state_version: _Optional[int] = ..., copy: _Optional[str] = ..., run_before: _Optional[int] = ...) -> None: ...
