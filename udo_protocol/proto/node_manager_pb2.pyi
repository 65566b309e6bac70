from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OpenLaneRequest(_message.Message):
    __slots__ = ("deployment", "lane", "session", "epoch", "pin_epoch", "input_schema", "wait_ms", "run", "call", "plan", "stored", "start_empty", "key_groups", "here", "run_elsewhere")
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PIN_EPOCH_FIELD_NUMBER: _ClassVar[int]
    INPUT_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    START_EMPTY_FIELD_NUMBER: _ClassVar[int]
    KEY_GROUPS_FIELD_NUMBER: _ClassVar[int]
    HERE_FIELD_NUMBER: _ClassVar[int]
    RUN_ELSEWHERE_FIELD_NUMBER: _ClassVar[int]
    deployment: str
    lane: str
    session: str
    epoch: int
    pin_epoch: bool
    input_schema: bytes
    wait_ms: int
    run: str
    call: str
    plan: int
    stored: bool
    start_empty: bool
    key_groups: int
    here: bool
    run_elsewhere: bool
    def __init__(self, deployment: _Optional[str] = ..., lane: _Optional[str] = ..., session: _Optional[str] = ..., epoch: _Optional[int] = ..., pin_epoch: _Optional[bool] = ..., input_schema: _Optional[bytes] = ..., wait_ms: _Optional[int] = ..., run: _Optional[str] = ..., call: _Optional[str] = ..., plan: _Optional[int] = ..., stored: _Optional[bool] = ..., start_empty: _Optional[bool] = ..., key_groups: _Optional[int] = ..., here: _Optional[bool] = ..., run_elsewhere: _Optional[bool] = ...) -> None: ...

class OpenLaneReply(_message.Message):
    __slots__ = ("operator", "version", "digest", "input_schema", "output_schema", "slots", "route", "node", "window_frames", "answer_timeout_ms", "frame_bytes", "retained_bytes", "lane_ttl_ms", "run", "key", "policy", "timed", "backoff_ceiling_us", "groups", "session_version")
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    INPUT_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FRAMES_FIELD_NUMBER: _ClassVar[int]
    ANSWER_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    RETAINED_BYTES_FIELD_NUMBER: _ClassVar[int]
    LANE_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    TIMED_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_CEILING_US_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    SESSION_VERSION_FIELD_NUMBER: _ClassVar[int]
    operator: str
    version: str
    digest: str
    input_schema: bytes
    output_schema: bytes
    slots: _containers.RepeatedCompositeFieldContainer[SlotAddress]
    route: int
    node: str
    window_frames: int
    answer_timeout_ms: int
    frame_bytes: int
    retained_bytes: int
    lane_ttl_ms: int
    run: int
    key: _containers.RepeatedScalarFieldContainer[str]
    policy: str
    timed: bool
    backoff_ceiling_us: int
    groups: GroupMap
    session_version: int
    def __init__(self, operator: _Optional[str] = ..., version: _Optional[str] = ..., digest: _Optional[str] = ..., input_schema: _Optional[bytes] = ..., output_schema: _Optional[bytes] = ..., slots: _Optional[_Iterable[_Union[SlotAddress, _Mapping]]] = ..., route: _Optional[int] = ..., node: _Optional[str] = ..., window_frames: _Optional[int] = ..., answer_timeout_ms: _Optional[int] = ..., frame_bytes: _Optional[int] = ..., retained_bytes: _Optional[int] = ..., lane_ttl_ms: _Optional[int] = ..., run: _Optional[int] = ..., key: _Optional[_Iterable[str]] = ..., policy: _Optional[str] = ..., timed: _Optional[bool] = ..., backoff_ceiling_us: _Optional[int] = ..., groups: _Optional[_Union[GroupMap, _Mapping]] = ..., session_version: _Optional[int] = ...) -> None: ...

class GroupMap(_message.Message):
    __slots__ = ("version", "slots")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    version: int
    slots: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, version: _Optional[int] = ..., slots: _Optional[_Iterable[int]] = ...) -> None: ...

class SlotAddress(_message.Message):
    __slots__ = ("prefix", "queue_socket", "run_id", "user", "password", "route", "node", "name")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SOCKET_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    queue_socket: str
    run_id: str
    user: str
    password: str
    route: int
    node: str
    name: str
    def __init__(self, prefix: _Optional[str] = ..., queue_socket: _Optional[str] = ..., run_id: _Optional[str] = ..., user: _Optional[str] = ..., password: _Optional[str] = ..., route: _Optional[int] = ..., node: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class DeployRequest(_message.Message):
    __slots__ = ("name", "operator", "version", "digest", "config_json", "wait_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    operator: str
    version: str
    digest: str
    config_json: str
    wait_ms: int
    def __init__(self, name: _Optional[str] = ..., operator: _Optional[str] = ..., version: _Optional[str] = ..., digest: _Optional[str] = ..., config_json: _Optional[str] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class DeployReply(_message.Message):
    __slots__ = ("instance",)
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    instance: str
    def __init__(self, instance: _Optional[str] = ...) -> None: ...

class UndeployRequest(_message.Message):
    __slots__ = ("name", "drop_state")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DROP_STATE_FIELD_NUMBER: _ClassVar[int]
    name: str
    drop_state: bool
    def __init__(self, name: _Optional[str] = ..., drop_state: _Optional[bool] = ...) -> None: ...

class UndeployReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UpdateRequest(_message.Message):
    __slots__ = ("name", "version", "digest", "config_json")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    digest: str
    config_json: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., digest: _Optional[str] = ..., config_json: _Optional[str] = ...) -> None: ...

class UpdateEvent(_message.Message):
    __slots__ = ("phase", "detail", "at_ms", "error_code")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    phase: str
    detail: str
    at_ms: float
    error_code: str
    def __init__(self, phase: _Optional[str] = ..., detail: _Optional[str] = ..., at_ms: _Optional[float] = ..., error_code: _Optional[str] = ...) -> None: ...

class ScaleRequest(_message.Message):
    __slots__ = ("deployment", "slots", "wait_ms")
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    deployment: str
    slots: int
    wait_ms: int
    def __init__(self, deployment: _Optional[str] = ..., slots: _Optional[int] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class ScaleReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PrepareScaleOutRequest(_message.Message):
    __slots__ = ("deployment", "slots", "strategy", "refresh_ms", "wait_ms")
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    REFRESH_MS_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    deployment: str
    slots: int
    strategy: str
    refresh_ms: int
    wait_ms: int
    def __init__(self, deployment: _Optional[str] = ..., slots: _Optional[int] = ..., strategy: _Optional[str] = ..., refresh_ms: _Optional[int] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class PrepareScaleOutReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MoveGroupsRequest(_message.Message):
    __slots__ = ("deployment", "groups", "to_slot", "strategy", "wait_ms", "to_node", "here")
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    TO_SLOT_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    TO_NODE_FIELD_NUMBER: _ClassVar[int]
    HERE_FIELD_NUMBER: _ClassVar[int]
    deployment: str
    groups: _containers.RepeatedScalarFieldContainer[int]
    to_slot: int
    strategy: str
    wait_ms: int
    to_node: str
    here: bool
    def __init__(self, deployment: _Optional[str] = ..., groups: _Optional[_Iterable[int]] = ..., to_slot: _Optional[int] = ..., strategy: _Optional[str] = ..., wait_ms: _Optional[int] = ..., to_node: _Optional[str] = ..., here: _Optional[bool] = ...) -> None: ...

class MoveEvent(_message.Message):
    __slots__ = ("moved", "total", "done", "at_ms")
    MOVED_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    moved: int
    total: int
    done: bool
    at_ms: float
    def __init__(self, moved: _Optional[int] = ..., total: _Optional[int] = ..., done: _Optional[bool] = ..., at_ms: _Optional[float] = ...) -> None: ...

class ReadyToTakeRequest(_message.Message):
    __slots__ = ("deployment", "slot")
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    deployment: str
    slot: int
    def __init__(self, deployment: _Optional[str] = ..., slot: _Optional[int] = ...) -> None: ...

class ReadyToTakeReply(_message.Message):
    __slots__ = ("place", "reads_ahead")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    READS_AHEAD_FIELD_NUMBER: _ClassVar[int]
    place: int
    reads_ahead: bool
    def __init__(self, place: _Optional[int] = ..., reads_ahead: _Optional[bool] = ...) -> None: ...

class GroupsPart(_message.Message):
    __slots__ = ("deployment", "slot", "version", "copy", "groups", "key", "value", "sizes", "field", "more")
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    COPY_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    deployment: str
    slot: int
    version: int
    copy: str
    groups: _containers.RepeatedScalarFieldContainer[int]
    key: str
    value: bytes
    sizes: _containers.RepeatedScalarFieldContainer[int]
    field: str
    more: bool
    def __init__(self, deployment: _Optional[str] = ..., slot: _Optional[int] = ..., version: _Optional[int] = ..., copy: _Optional[str] = ..., groups: _Optional[_Iterable[int]] = ..., key: _Optional[str] = ..., value: _Optional[bytes] = ..., sizes: _Optional[_Iterable[int]] = ..., field: _Optional[str] = ..., more: _Optional[bool] = ...) -> None: ...

class ReadGroupsAheadReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TakeGroupsReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AdoptGroupsRequest(_message.Message):
    __slots__ = ("deployment", "slot", "version", "placement_json", "wait_ms")
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_JSON_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    deployment: str
    slot: int
    version: int
    placement_json: str
    wait_ms: int
    def __init__(self, deployment: _Optional[str] = ..., slot: _Optional[int] = ..., version: _Optional[int] = ..., placement_json: _Optional[str] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class AdoptGroupsReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PlacesRequest(_message.Message):
    __slots__ = ("deployment", "here")
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    HERE_FIELD_NUMBER: _ClassVar[int]
    deployment: str
    here: bool
    def __init__(self, deployment: _Optional[str] = ..., here: _Optional[bool] = ...) -> None: ...

class PlacesReply(_message.Message):
    __slots__ = ("slots",)
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    slots: _containers.RepeatedCompositeFieldContainer[PlacedSlot]
    def __init__(self, slots: _Optional[_Iterable[_Union[PlacedSlot, _Mapping]]] = ...) -> None: ...

class PlacedSlot(_message.Message):
    __slots__ = ("node", "slot", "groups")
    NODE_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    node: str
    slot: int
    groups: str
    def __init__(self, node: _Optional[str] = ..., slot: _Optional[int] = ..., groups: _Optional[str] = ...) -> None: ...

class HandOverRunsRequest(_message.Message):
    __slots__ = ("deployment", "from_node", "to_node")
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    FROM_NODE_FIELD_NUMBER: _ClassVar[int]
    TO_NODE_FIELD_NUMBER: _ClassVar[int]
    deployment: str
    from_node: str
    to_node: str
    def __init__(self, deployment: _Optional[str] = ..., from_node: _Optional[str] = ..., to_node: _Optional[str] = ...) -> None: ...

class HandOverRunsReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TakeRunsRequest(_message.Message):
    __slots__ = ("deployment", "sessions")
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    deployment: str
    sessions: _containers.RepeatedCompositeFieldContainer[SessionRuns]
    def __init__(self, deployment: _Optional[str] = ..., sessions: _Optional[_Iterable[_Union[SessionRuns, _Mapping]]] = ...) -> None: ...

class SessionRuns(_message.Message):
    __slots__ = ("session", "runs")
    class RunsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    session: str
    runs: _containers.ScalarMap[str, str]
    def __init__(self, session: _Optional[str] = ..., runs: _Optional[_Mapping[str, str]] = ...) -> None: ...

class TakeRunsReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DiffRequest(_message.Message):
    __slots__ = ("name", "version", "digest", "for_ms", "examples", "here")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    FOR_MS_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    HERE_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    digest: str
    for_ms: int
    examples: int
    here: bool
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., digest: _Optional[str] = ..., for_ms: _Optional[int] = ..., examples: _Optional[int] = ..., here: _Optional[bool] = ...) -> None: ...

class DiffEvent(_message.Message):
    __slots__ = ("report_json", "examples_json")
    REPORT_JSON_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_JSON_FIELD_NUMBER: _ClassVar[int]
    report_json: str
    examples_json: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, report_json: _Optional[str] = ..., examples_json: _Optional[_Iterable[str]] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("node", "driver", "started_at", "slots", "metrics_address", "servers", "background_errors")
    class BackgroundErrorsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NODE_FIELD_NUMBER: _ClassVar[int]
    DRIVER_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    METRICS_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    BACKGROUND_ERRORS_FIELD_NUMBER: _ClassVar[int]
    node: str
    driver: str
    started_at: str
    slots: _containers.RepeatedCompositeFieldContainer[SlotStatus]
    metrics_address: str
    servers: _containers.RepeatedCompositeFieldContainer[ServerStatus]
    background_errors: _containers.ScalarMap[str, int]
    def __init__(self, node: _Optional[str] = ..., driver: _Optional[str] = ..., started_at: _Optional[str] = ..., slots: _Optional[_Iterable[_Union[SlotStatus, _Mapping]]] = ..., metrics_address: _Optional[str] = ..., servers: _Optional[_Iterable[_Union[ServerStatus, _Mapping]]] = ..., background_errors: _Optional[_Mapping[str, int]] = ...) -> None: ...

class ServerStatus(_message.Message):
    __slots__ = ("role", "socket", "pid", "version", "run_id", "used_bytes", "remark", "trouble")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    SOCKET_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    REMARK_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    role: str
    socket: str
    pid: int
    version: str
    run_id: str
    used_bytes: int
    remark: str
    trouble: str
    def __init__(self, role: _Optional[str] = ..., socket: _Optional[str] = ..., pid: _Optional[int] = ..., version: _Optional[str] = ..., run_id: _Optional[str] = ..., used_bytes: _Optional[int] = ..., remark: _Optional[str] = ..., trouble: _Optional[str] = ...) -> None: ...

class SlotStatus(_message.Message):
    __slots__ = ("deployment", "slot", "operator", "version", "digest", "state", "instance", "pid", "restarts", "depth_frames", "retained_bytes", "emitted", "rss_bytes", "last_error", "pinned", "lanes", "dead_letters", "policy", "diff", "groups", "map_version", "canary", "operator_pid")
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FRAMES_FIELD_NUMBER: _ClassVar[int]
    RETAINED_BYTES_FIELD_NUMBER: _ClassVar[int]
    EMITTED_FIELD_NUMBER: _ClassVar[int]
    RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    DIFF_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    CANARY_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_PID_FIELD_NUMBER: _ClassVar[int]
    deployment: str
    slot: int
    operator: str
    version: str
    digest: str
    state: str
    instance: str
    pid: int
    restarts: int
    depth_frames: int
    retained_bytes: int
    emitted: int
    rss_bytes: int
    last_error: str
    pinned: str
    lanes: int
    dead_letters: int
    policy: str
    diff: str
    groups: str
    map_version: int
    canary: str
    operator_pid: int
    def __init__(self, deployment: _Optional[str] = ..., slot: _Optional[int] = ..., operator: _Optional[str] = ..., version: _Optional[str] = ..., digest: _Optional[str] = ..., state: _Optional[str] = ..., instance: _Optional[str] = ..., pid: _Optional[int] = ..., restarts: _Optional[int] = ..., depth_frames: _Optional[int] = ..., retained_bytes: _Optional[int] = ..., emitted: _Optional[int] = ..., rss_bytes: _Optional[int] = ..., last_error: _Optional[str] = ..., pinned: _Optional[str] = ..., lanes: _Optional[int] = ..., dead_letters: _Optional[int] = ..., policy: _Optional[str] = ..., diff: _Optional[str] = ..., groups: _Optional[str] = ..., map_version: _Optional[int] = ..., canary: _Optional[str] = ..., operator_pid: _Optional[int] = ...) -> None: ...

class LogsRequest(_message.Message):
    __slots__ = ("deployment", "follow", "tail_lines")
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    TAIL_LINES_FIELD_NUMBER: _ClassVar[int]
    deployment: str
    follow: bool
    tail_lines: int
    def __init__(self, deployment: _Optional[str] = ..., follow: _Optional[bool] = ..., tail_lines: _Optional[int] = ...) -> None: ...

class LogLine(_message.Message):
    __slots__ = ("at", "instance", "version", "stream", "text")
    AT_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    at: str
    instance: str
    version: str
    stream: str
    text: str
    def __init__(self, at: _Optional[str] = ..., instance: _Optional[str] = ..., version: _Optional[str] = ..., stream: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ("deployment",)
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    deployment: str
    def __init__(self, deployment: _Optional[str] = ...) -> None: ...

class StatsReply(_message.Message):
    __slots__ = ("slots",)
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    slots: _containers.RepeatedCompositeFieldContainer[SlotStats]
    def __init__(self, slots: _Optional[_Iterable[_Union[SlotStats, _Mapping]]] = ...) -> None: ...

class SlotStats(_message.Message):
    __slots__ = ("deployment", "slot", "version", "events_in", "events_out", "frames", "errors", "busy_s", "p50_ms", "p99_ms", "cpu_percent", "rss_bytes", "depth_frames", "restarts", "retained_bytes", "dead_letters", "retries")
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EVENTS_IN_FIELD_NUMBER: _ClassVar[int]
    EVENTS_OUT_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    BUSY_S_FIELD_NUMBER: _ClassVar[int]
    P50_MS_FIELD_NUMBER: _ClassVar[int]
    P99_MS_FIELD_NUMBER: _ClassVar[int]
    CPU_PERCENT_FIELD_NUMBER: _ClassVar[int]
    RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FRAMES_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    RETAINED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    deployment: str
    slot: int
    version: str
    events_in: int
    events_out: int
    frames: int
    errors: int
    busy_s: float
    p50_ms: float
    p99_ms: float
    cpu_percent: float
    rss_bytes: int
    depth_frames: int
    restarts: int
    retained_bytes: int
    dead_letters: int
    retries: int
    def __init__(self, deployment: _Optional[str] = ..., slot: _Optional[int] = ..., version: _Optional[str] = ..., events_in: _Optional[int] = ..., events_out: _Optional[int] = ..., frames: _Optional[int] = ..., errors: _Optional[int] = ..., busy_s: _Optional[float] = ..., p50_ms: _Optional[float] = ..., p99_ms: _Optional[float] = ..., cpu_percent: _Optional[float] = ..., rss_bytes: _Optional[int] = ..., depth_frames: _Optional[int] = ..., restarts: _Optional[int] = ..., retained_bytes: _Optional[int] = ..., dead_letters: _Optional[int] = ..., retries: _Optional[int] = ...) -> None: ...

class DecisionsRequest(_message.Message):
    __slots__ = ("deployment",)
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    deployment: str
    def __init__(self, deployment: _Optional[str] = ...) -> None: ...

class DecisionLines(_message.Message):
    __slots__ = ("deployment", "segment", "lines")
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    deployment: str
    segment: str
    lines: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, deployment: _Optional[str] = ..., segment: _Optional[str] = ..., lines: _Optional[_Iterable[str]] = ...) -> None: ...

class UsageRequest(_message.Message):
    __slots__ = ("deployment",)
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    deployment: str
    def __init__(self, deployment: _Optional[str] = ...) -> None: ...

class UsageReply(_message.Message):
    __slots__ = ("node", "deployments")
    NODE_FIELD_NUMBER: _ClassVar[int]
    DEPLOYMENTS_FIELD_NUMBER: _ClassVar[int]
    node: str
    deployments: _containers.RepeatedCompositeFieldContainer[DeploymentUsage]
    def __init__(self, node: _Optional[str] = ..., deployments: _Optional[_Iterable[_Union[DeploymentUsage, _Mapping]]] = ...) -> None: ...

class DeploymentUsage(_message.Message):
    __slots__ = ("deployment", "since", "until", "events_in", "events_out", "bytes_in", "bytes_out", "cpu_s", "state_byte_hours", "query_state_byte_hours")
    class QueryStateByteHoursEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    EVENTS_IN_FIELD_NUMBER: _ClassVar[int]
    EVENTS_OUT_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FIELD_NUMBER: _ClassVar[int]
    BYTES_OUT_FIELD_NUMBER: _ClassVar[int]
    CPU_S_FIELD_NUMBER: _ClassVar[int]
    STATE_BYTE_HOURS_FIELD_NUMBER: _ClassVar[int]
    QUERY_STATE_BYTE_HOURS_FIELD_NUMBER: _ClassVar[int]
    deployment: str
    since: float
    until: float
    events_in: int
    events_out: int
    bytes_in: int
    bytes_out: int
    cpu_s: float
    state_byte_hours: float
    query_state_byte_hours: _containers.ScalarMap[str, float]
    def __init__(self, deployment: _Optional[str] = ..., since: _Optional[float] = ..., until: _Optional[float] = ..., events_in: _Optional[int] = ..., events_out: _Optional[int] = ..., bytes_in: _Optional[int] = ..., bytes_out: _Optional[int] = ..., cpu_s: _Optional[float] = ..., state_byte_hours: _Optional[float] = ..., query_state_byte_hours: _Optional[_Mapping[str, float]] = ...) -> None: ...

class SignalsRequest(_message.Message):
    __slots__ = ("deployment",)
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    deployment: str
    def __init__(self, deployment: _Optional[str] = ...) -> None: ...

class SignalsReply(_message.Message):
    __slots__ = ("node", "node_use", "cores", "window_s", "watched_s", "monitor_cpu_s", "slots", "rules")
    class RulesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NODE_FIELD_NUMBER: _ClassVar[int]
    NODE_USE_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    WINDOW_S_FIELD_NUMBER: _ClassVar[int]
    WATCHED_S_FIELD_NUMBER: _ClassVar[int]
    MONITOR_CPU_S_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    node: str
    node_use: float
    cores: int
    window_s: float
    watched_s: float
    monitor_cpu_s: float
    slots: _containers.RepeatedCompositeFieldContainer[SlotSignals]
    rules: _containers.ScalarMap[str, str]
    def __init__(self, node: _Optional[str] = ..., node_use: _Optional[float] = ..., cores: _Optional[int] = ..., window_s: _Optional[float] = ..., watched_s: _Optional[float] = ..., monitor_cpu_s: _Optional[float] = ..., slots: _Optional[_Iterable[_Union[SlotSignals, _Mapping]]] = ..., rules: _Optional[_Mapping[str, str]] = ...) -> None: ...

class SlotSignals(_message.Message):
    __slots__ = ("deployment", "slot", "missing", "cpu", "memory", "busy", "arrivals", "answers", "outputs", "backlog", "growth", "service_ms", "response_ms", "lanes", "rss_bytes", "held")
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    CPU_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    ARRIVALS_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_FIELD_NUMBER: _ClassVar[int]
    GROWTH_FIELD_NUMBER: _ClassVar[int]
    SERVICE_MS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_MS_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    deployment: str
    slot: int
    missing: str
    cpu: float
    memory: float
    busy: float
    arrivals: float
    answers: float
    outputs: float
    backlog: float
    growth: float
    service_ms: float
    response_ms: float
    lanes: int
    rss_bytes: int
    held: float
    def __init__(self, deployment: _Optional[str] = ..., slot: _Optional[int] = ..., missing: _Optional[str] = ..., cpu: _Optional[float] = ..., memory: _Optional[float] = ..., busy: _Optional[float] = ..., arrivals: _Optional[float] = ..., answers: _Optional[float] = ..., outputs: _Optional[float] = ..., backlog: _Optional[float] = ..., growth: _Optional[float] = ..., service_ms: _Optional[float] = ..., response_ms: _Optional[float] = ..., lanes: _Optional[int] = ..., rss_bytes: _Optional[int] = ..., held: _Optional[float] = ...) -> None: ...

class StateListRequest(_message.Message):
    __slots__ = ("deployment",)
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    deployment: str
    def __init__(self, deployment: _Optional[str] = ...) -> None: ...

class StateListReply(_message.Message):
    __slots__ = ("node", "sessions")
    NODE_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    node: str
    sessions: _containers.RepeatedCompositeFieldContainer[StateSession]
    def __init__(self, node: _Optional[str] = ..., sessions: _Optional[_Iterable[_Union[StateSession, _Mapping]]] = ...) -> None: ...

class StateSession(_message.Message):
    __slots__ = ("deployment", "slot", "session", "last_ended", "run", "keys", "bytes", "changed_at", "lanes", "used_at", "in_use", "broken")
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    LAST_ENDED_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    CHANGED_AT_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    USED_AT_FIELD_NUMBER: _ClassVar[int]
    IN_USE_FIELD_NUMBER: _ClassVar[int]
    BROKEN_FIELD_NUMBER: _ClassVar[int]
    deployment: str
    slot: int
    session: str
    last_ended: int
    run: int
    keys: int
    bytes: int
    changed_at: float
    lanes: int
    used_at: float
    in_use: bool
    broken: str
    def __init__(self, deployment: _Optional[str] = ..., slot: _Optional[int] = ..., session: _Optional[str] = ..., last_ended: _Optional[int] = ..., run: _Optional[int] = ..., keys: _Optional[int] = ..., bytes: _Optional[int] = ..., changed_at: _Optional[float] = ..., lanes: _Optional[int] = ..., used_at: _Optional[float] = ..., in_use: _Optional[bool] = ..., broken: _Optional[str] = ...) -> None: ...

class StateExportRequest(_message.Message):
    __slots__ = ("deployment", "session", "here")
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    HERE_FIELD_NUMBER: _ClassVar[int]
    deployment: str
    session: str
    here: bool
    def __init__(self, deployment: _Optional[str] = ..., session: _Optional[str] = ..., here: _Optional[bool] = ...) -> None: ...

class StatePart(_message.Message):
    __slots__ = ("header", "piece")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    header: StateHeader
    piece: StatePiece
    def __init__(self, header: _Optional[_Union[StateHeader, _Mapping]] = ..., piece: _Optional[_Union[StatePiece, _Mapping]] = ...) -> None: ...

class StateHeader(_message.Message):
    __slots__ = ("deployment", "session", "operator", "version", "state_version", "key", "key_groups", "last_ended", "keys", "bytes", "replace", "covers", "step", "run", "number")
    class Step(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        WHOLE: _ClassVar[StateHeader.Step]
        BEGIN: _ClassVar[StateHeader.Step]
        PUT: _ClassVar[StateHeader.Step]
        END: _ClassVar[StateHeader.Step]
    WHOLE: StateHeader.Step
    BEGIN: StateHeader.Step
    PUT: StateHeader.Step
    END: StateHeader.Step
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_VERSION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    KEY_GROUPS_FIELD_NUMBER: _ClassVar[int]
    LAST_ENDED_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    COVERS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    deployment: str
    session: str
    operator: str
    version: str
    state_version: int
    key: _containers.RepeatedCompositeFieldContainer[KeyColumn]
    key_groups: int
    last_ended: int
    keys: int
    bytes: int
    replace: bool
    covers: _containers.RepeatedScalarFieldContainer[str]
    step: StateHeader.Step
    run: int
    number: int
    def __init__(self, deployment: _Optional[str] = ..., session: _Optional[str] = ..., operator: _Optional[str] = ..., version: _Optional[str] = ..., state_version: _Optional[int] = ..., key: _Optional[_Iterable[_Union[KeyColumn, _Mapping]]] = ..., key_groups: _Optional[int] = ..., last_ended: _Optional[int] = ..., keys: _Optional[int] = ..., bytes: _Optional[int] = ..., replace: _Optional[bool] = ..., covers: _Optional[_Iterable[str]] = ..., step: _Optional[_Union[StateHeader.Step, str]] = ..., run: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class KeyColumn(_message.Message):
    __slots__ = ("name", "type")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ...) -> None: ...

class StatePiece(_message.Message):
    __slots__ = ("group", "kind", "data", "more")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        META: _ClassVar[StatePiece.Kind]
        BASE: _ClassVar[StatePiece.Kind]
        DELTA: _ClassVar[StatePiece.Kind]
    META: StatePiece.Kind
    BASE: StatePiece.Kind
    DELTA: StatePiece.Kind
    GROUP_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    group: int
    kind: StatePiece.Kind
    data: bytes
    more: bool
    def __init__(self, group: _Optional[int] = ..., kind: _Optional[_Union[StatePiece.Kind, str]] = ..., data: _Optional[bytes] = ..., more: _Optional[bool] = ...) -> None: ...

class StateImportReply(_message.Message):
    __slots__ = ("groups", "bytes", "run")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    groups: int
    bytes: int
    run: int
    def __init__(self, groups: _Optional[int] = ..., bytes: _Optional[int] = ..., run: _Optional[int] = ...) -> None: ...

class StateDropRequest(_message.Message):
    __slots__ = ("deployment", "session", "force")
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    deployment: str
    session: str
    force: bool
    def __init__(self, deployment: _Optional[str] = ..., session: _Optional[str] = ..., force: _Optional[bool] = ...) -> None: ...

class StateDropReply(_message.Message):
    __slots__ = ("keys", "bytes")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    keys: int
    bytes: int
    def __init__(self, keys: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class RecordRequest(_message.Message):
    __slots__ = ("deployment", "for_ms", "frames", "slot")
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    FOR_MS_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    deployment: str
    for_ms: int
    frames: int
    slot: int
    def __init__(self, deployment: _Optional[str] = ..., for_ms: _Optional[int] = ..., frames: _Optional[int] = ..., slot: _Optional[int] = ...) -> None: ...

class RecordPart(_message.Message):
    __slots__ = ("header", "session", "piece", "schema", "frames", "gap", "end")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    header: RecordHeader
    session: RecordSession
    piece: StatePiece
    schema: RecordSchema
    frames: RecordFrames
    gap: RecordGap
    end: RecordEnd
    def __init__(self, header: _Optional[_Union[RecordHeader, _Mapping]] = ..., session: _Optional[_Union[RecordSession, _Mapping]] = ..., piece: _Optional[_Union[StatePiece, _Mapping]] = ..., schema: _Optional[_Union[RecordSchema, _Mapping]] = ..., frames: _Optional[_Union[RecordFrames, _Mapping]] = ..., gap: _Optional[_Union[RecordGap, _Mapping]] = ..., end: _Optional[_Union[RecordEnd, _Mapping]] = ...) -> None: ...

class RecordHeader(_message.Message):
    __slots__ = ("deployment", "node", "operator", "version", "digest", "manifest_json", "env", "secrets", "files", "config_json", "first_seq", "failed", "cuts", "keyed", "slot")
    class CutsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_JSON_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQ_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    CUTS_FIELD_NUMBER: _ClassVar[int]
    KEYED_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    deployment: str
    node: str
    operator: str
    version: str
    digest: str
    manifest_json: str
    env: _containers.RepeatedScalarFieldContainer[str]
    secrets: _containers.RepeatedScalarFieldContainer[str]
    files: _containers.RepeatedScalarFieldContainer[str]
    config_json: str
    first_seq: int
    failed: _containers.RepeatedScalarFieldContainer[str]
    cuts: _containers.ScalarMap[str, int]
    keyed: bool
    slot: int
    def __init__(self, deployment: _Optional[str] = ..., node: _Optional[str] = ..., operator: _Optional[str] = ..., version: _Optional[str] = ..., digest: _Optional[str] = ..., manifest_json: _Optional[str] = ..., env: _Optional[_Iterable[str]] = ..., secrets: _Optional[_Iterable[str]] = ..., files: _Optional[_Iterable[str]] = ..., config_json: _Optional[str] = ..., first_seq: _Optional[int] = ..., failed: _Optional[_Iterable[str]] = ..., cuts: _Optional[_Mapping[str, int]] = ..., keyed: _Optional[bool] = ..., slot: _Optional[int] = ...) -> None: ...

class RecordSession(_message.Message):
    __slots__ = ("session", "record_json")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RECORD_JSON_FIELD_NUMBER: _ClassVar[int]
    session: str
    record_json: str
    def __init__(self, session: _Optional[str] = ..., record_json: _Optional[str] = ...) -> None: ...

class RecordSchema(_message.Message):
    __slots__ = ("id", "ipc")
    ID_FIELD_NUMBER: _ClassVar[int]
    IPC_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    ipc: bytes
    def __init__(self, id: _Optional[bytes] = ..., ipc: _Optional[bytes] = ...) -> None: ...

class RecordFrames(_message.Message):
    __slots__ = ("first_seq", "frames", "more")
    FIRST_SEQ_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    first_seq: int
    frames: _containers.RepeatedScalarFieldContainer[bytes]
    more: bool
    def __init__(self, first_seq: _Optional[int] = ..., frames: _Optional[_Iterable[bytes]] = ..., more: _Optional[bool] = ...) -> None: ...

class RecordGap(_message.Message):
    __slots__ = ("first_seq", "last_seq")
    FIRST_SEQ_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQ_FIELD_NUMBER: _ClassVar[int]
    first_seq: int
    last_seq: int
    def __init__(self, first_seq: _Optional[int] = ..., last_seq: _Optional[int] = ...) -> None: ...

class RecordEnd(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class SlotReplica(_message.Message):
    __slots__ = ("deployment", "made", "place", "node", "disk")
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    MADE_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    DISK_FIELD_NUMBER: _ClassVar[int]
    deployment: str
    made: int
    place: int
    node: str
    disk: str
    def __init__(self, deployment: _Optional[str] = ..., made: _Optional[int] = ..., place: _Optional[int] = ..., node: _Optional[str] = ..., disk: _Optional[str] = ...) -> None: ...

class CopySlotRequest(_message.Message):
    __slots__ = ("replica",)
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    replica: SlotReplica
    def __init__(self, replica: _Optional[_Union[SlotReplica, _Mapping]] = ...) -> None: ...

class SlotCopyPart(_message.Message):
    __slots__ = ("key", "value", "more", "prefix")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: bytes
    more: bool
    prefix: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ..., more: _Optional[bool] = ..., prefix: _Optional[str] = ...) -> None: ...

class FollowSlotRequest(_message.Message):
    __slots__ = ("replica", "log", "held", "after", "wait_ms")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    replica: SlotReplica
    log: str
    held: str
    after: str
    wait_ms: int
    def __init__(self, replica: _Optional[_Union[SlotReplica, _Mapping]] = ..., log: _Optional[str] = ..., held: _Optional[str] = ..., after: _Optional[str] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class FollowSlotReply(_message.Message):
    __slots__ = ("again", "writes", "prefix")
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    again: bool
    writes: _containers.RepeatedCompositeFieldContainer[LoggedWrites]
    prefix: str
    def __init__(self, again: _Optional[bool] = ..., writes: _Optional[_Iterable[_Union[LoggedWrites, _Mapping]]] = ..., prefix: _Optional[str] = ...) -> None: ...

class LoggedWrites(_message.Message):
    __slots__ = ("position", "commands", "token", "whole")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    position: str
    commands: _containers.RepeatedCompositeFieldContainer[LoggedCommand]
    token: int
    whole: bool
    def __init__(self, position: _Optional[str] = ..., commands: _Optional[_Iterable[_Union[LoggedCommand, _Mapping]]] = ..., token: _Optional[int] = ..., whole: _Optional[bool] = ...) -> None: ...

class LoggedCommand(_message.Message):
    __slots__ = ("words",)
    WORDS_FIELD_NUMBER: _ClassVar[int]
    words: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, words: _Optional[_Iterable[bytes]] = ...) -> None: ...

class DeadListRequest(_message.Message):
    __slots__ = ("deployment", "ids", "unfinished", "whole")
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    UNFINISHED_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    deployment: str
    ids: _containers.RepeatedScalarFieldContainer[str]
    unfinished: bool
    whole: bool
    def __init__(self, deployment: _Optional[str] = ..., ids: _Optional[_Iterable[str]] = ..., unfinished: _Optional[bool] = ..., whole: _Optional[bool] = ...) -> None: ...

class DeadLetter(_message.Message):
    __slots__ = ("id", "deployment", "slot", "operator", "instance", "session", "epoch", "partition", "attempt", "lane", "number", "row", "at", "code", "reason", "traceback", "event", "arrow", "timer", "keyed", "unfinished", "bytes", "replays", "replay", "node")
    ID_FIELD_NUMBER: _ClassVar[int]
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    ARROW_FIELD_NUMBER: _ClassVar[int]
    TIMER_FIELD_NUMBER: _ClassVar[int]
    KEYED_FIELD_NUMBER: _ClassVar[int]
    UNFINISHED_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    REPLAYS_FIELD_NUMBER: _ClassVar[int]
    REPLAY_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    id: str
    deployment: str
    slot: int
    operator: str
    instance: str
    session: str
    epoch: int
    partition: int
    attempt: int
    lane: str
    number: int
    row: int
    at: float
    code: str
    reason: str
    traceback: str
    event: str
    arrow: bytes
    timer: bool
    keyed: bool
    unfinished: bool
    bytes: int
    replays: int
    replay: str
    node: str
    def __init__(self, id: _Optional[str] = ..., deployment: _Optional[str] = ..., slot: _Optional[int] = ..., operator: _Optional[str] = ..., instance: _Optional[str] = ..., session: _Optional[str] = ..., epoch: _Optional[int] = ..., partition: _Optional[int] = ..., attempt: _Optional[int] = ..., lane: _Optional[str] = ..., number: _Optional[int] = ..., row: _Optional[int] = ..., at: _Optional[float] = ..., code: _Optional[str] = ..., reason: _Optional[str] = ..., traceback: _Optional[str] = ..., event: _Optional[str] = ..., arrow: _Optional[bytes] = ..., timer: _Optional[bool] = ..., keyed: _Optional[bool] = ..., unfinished: _Optional[bool] = ..., bytes: _Optional[int] = ..., replays: _Optional[int] = ..., replay: _Optional[str] = ..., node: _Optional[str] = ...) -> None: ...

class DeadDropRequest(_message.Message):
    __slots__ = ("deployment", "ids", "all", "unfinished")
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    UNFINISHED_FIELD_NUMBER: _ClassVar[int]
    deployment: str
    ids: _containers.RepeatedScalarFieldContainer[str]
    all: bool
    unfinished: bool
    def __init__(self, deployment: _Optional[str] = ..., ids: _Optional[_Iterable[str]] = ..., all: _Optional[bool] = ..., unfinished: _Optional[bool] = ...) -> None: ...

class DeadDropReply(_message.Message):
    __slots__ = ("dropped",)
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    dropped: int
    def __init__(self, dropped: _Optional[int] = ...) -> None: ...

class DeadReplayRequest(_message.Message):
    __slots__ = ("deployment", "ids", "all")
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    deployment: str
    ids: _containers.RepeatedScalarFieldContainer[str]
    all: bool
    def __init__(self, deployment: _Optional[str] = ..., ids: _Optional[_Iterable[str]] = ..., all: _Optional[bool] = ...) -> None: ...

class DeadReplayReply(_message.Message):
    __slots__ = ("waiting", "timers")
    WAITING_FIELD_NUMBER: _ClassVar[int]
    TIMERS_FIELD_NUMBER: _ClassVar[int]
    waiting: int
    timers: int
    def __init__(self, waiting: _Optional[int] = ..., timers: _Optional[int] = ...) -> None: ...

class DeadAmendRequest(_message.Message):
    __slots__ = ("deployment", "id", "code", "reason", "traceback")
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    deployment: str
    id: str
    code: str
    reason: str
    traceback: str
    def __init__(self, deployment: _Optional[str] = ..., id: _Optional[str] = ..., code: _Optional[str] = ..., reason: _Optional[str] = ..., traceback: _Optional[str] = ...) -> None: ...

class DeadAmendReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
