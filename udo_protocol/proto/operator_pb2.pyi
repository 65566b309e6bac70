from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Message(_message.Message):
    __slots__ = ("id", "parts", "hello", "start", "ready", "data", "timers", "answer", "migrate", "rehearse", "ping", "stop", "bye", "log", "failure")
    ID_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    TIMERS_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    MIGRATE_FIELD_NUMBER: _ClassVar[int]
    REHEARSE_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    BYE_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    id: int
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    hello: Hello
    start: Start
    ready: Ready
    data: Data
    timers: Timers
    answer: Answer
    migrate: Migrate
    rehearse: Data
    ping: Ping
    stop: Stop
    bye: Bye
    log: Log
    failure: Failure
    def __init__(self, id: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., data: _Optional[_Union[Data, _Mapping]] = ..., timers: _Optional[_Union[Timers, _Mapping]] = ..., answer: _Optional[_Union[Answer, _Mapping]] = ..., migrate: _Optional[_Union[Migrate, _Mapping]] = ..., rehearse: _Optional[_Union[Data, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., stop: _Optional[_Union[Stop, _Mapping]] = ..., bye: _Optional[_Union[Bye, _Mapping]] = ..., log: _Optional[_Union[Log, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("table", "bytes", "shared_offset")
    class Table(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        TABLE_UNSPECIFIED: _ClassVar[Part.Table]
        EVENTS: _ClassVar[Part.Table]
        ROWS: _ClassVar[Part.Table]
        INDEX: _ClassVar[Part.Table]
        KEYS: _ClassVar[Part.Table]
        STATES: _ClassVar[Part.Table]
        SET: _ClassVar[Part.Table]
        DUE: _ClassVar[Part.Table]
    TABLE_UNSPECIFIED: Part.Table
    EVENTS: Part.Table
    ROWS: Part.Table
    INDEX: Part.Table
    KEYS: Part.Table
    STATES: Part.Table
    SET: Part.Table
    DUE: Part.Table
    TABLE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SHARED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    table: Part.Table
    bytes: int
    shared_offset: int
    def __init__(self, table: _Optional[_Union[Part.Table, str]] = ..., bytes: _Optional[int] = ..., shared_offset: _Optional[int] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("oldest", "newest", "capabilities", "sdk")
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    SDK_FIELD_NUMBER: _ClassVar[int]
    oldest: int
    newest: int
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    sdk: str
    def __init__(self, oldest: _Optional[int] = ..., newest: _Optional[int] = ..., capabilities: _Optional[_Iterable[str]] = ..., sdk: _Optional[str] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("version", "operator", "operator_version", "instance", "input", "output", "capabilities", "keyed", "answer_bytes", "check")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_VERSION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    KEYED_FIELD_NUMBER: _ClassVar[int]
    ANSWER_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    version: int
    operator: str
    operator_version: str
    instance: str
    input: bytes
    output: bytes
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    keyed: Keyed
    answer_bytes: int
    check: bool
    def __init__(self, version: _Optional[int] = ..., operator: _Optional[str] = ..., operator_version: _Optional[str] = ..., instance: _Optional[str] = ..., input: _Optional[bytes] = ..., output: _Optional[bytes] = ..., capabilities: _Optional[_Iterable[str]] = ..., keyed: _Optional[_Union[Keyed, _Mapping]] = ..., answer_bytes: _Optional[int] = ..., check: _Optional[bool] = ...) -> None: ...

class Keyed(_message.Message):
    __slots__ = ("columns", "time_column", "state_version", "migrates_from")
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    TIME_COLUMN_FIELD_NUMBER: _ClassVar[int]
    STATE_VERSION_FIELD_NUMBER: _ClassVar[int]
    MIGRATES_FROM_FIELD_NUMBER: _ClassVar[int]
    columns: _containers.RepeatedScalarFieldContainer[str]
    time_column: str
    state_version: int
    migrates_from: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, columns: _Optional[_Iterable[str]] = ..., time_column: _Optional[str] = ..., state_version: _Optional[int] = ..., migrates_from: _Optional[_Iterable[int]] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("open_ms",)
    OPEN_MS_FIELD_NUMBER: _ClassVar[int]
    open_ms: float
    def __init__(self, open_ms: _Optional[float] = ...) -> None: ...

class Data(_message.Message):
    __slots__ = ("watermark_us",)
    WATERMARK_US_FIELD_NUMBER: _ClassVar[int]
    watermark_us: int
    def __init__(self, watermark_us: _Optional[int] = ...) -> None: ...

class Timers(_message.Message):
    __slots__ = ("watermark_us",)
    WATERMARK_US_FIELD_NUMBER: _ClassVar[int]
    watermark_us: int
    def __init__(self, watermark_us: _Optional[int] = ...) -> None: ...

class Migrate(_message.Message):
    __slots__ = ("from_version",)
    FROM_VERSION_FIELD_NUMBER: _ClassVar[int]
    from_version: int
    def __init__(self, from_version: _Optional[int] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Ping(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Stop(_message.Message):
    __slots__ = ("deadline_ms",)
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    deadline_ms: int
    def __init__(self, deadline_ms: _Optional[int] = ...) -> None: ...

class Bye(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Log(_message.Message):
    __slots__ = ("level", "message")
    class Level(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        LEVEL_UNSPECIFIED: _ClassVar[Log.Level]
        DEBUG: _ClassVar[Log.Level]
        INFO: _ClassVar[Log.Level]
        WARNING: _ClassVar[Log.Level]
        ERROR: _ClassVar[Log.Level]
    LEVEL_UNSPECIFIED: Log.Level
    DEBUG: Log.Level
    INFO: Log.Level
    WARNING: Log.Level
    ERROR: Log.Level
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    level: Log.Level
    message: str
    def __init__(self, level: _Optional[_Union[Log.Level, str]] = ..., message: _Optional[str] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("type", "message", "trace", "row", "code")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    type: str
    message: str
    trace: str
    row: int
    code: str
    def __init__(self, type: _Optional[str] = ..., message: _Optional[str] = ..., trace: _Optional[str] = ..., row: _Optional[int] = ..., code: _Optional[str] = ...) -> None: ...
