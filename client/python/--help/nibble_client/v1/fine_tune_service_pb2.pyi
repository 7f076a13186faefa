import datetime

from google.longrunning import operations_pb2 as _operations_pb2  # type: ignore[import-untyped]
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.rpc import status_pb2 as _status_pb2  # type: ignore[import-untyped]
from nibble_client.v1 import common_pb2 as _common_pb2
from nibble_client.v1 import job_spec_pb2 as _job_spec_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JobState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_STATE_UNSPECIFIED: _ClassVar[JobState]
    JOB_STATE_QUEUED: _ClassVar[JobState]
    JOB_STATE_PREPARING: _ClassVar[JobState]
    JOB_STATE_RUNNING: _ClassVar[JobState]
    JOB_STATE_PAUSING: _ClassVar[JobState]
    JOB_STATE_PAUSED: _ClassVar[JobState]
    JOB_STATE_CANCELLING: _ClassVar[JobState]
    JOB_STATE_SUCCEEDED: _ClassVar[JobState]
    JOB_STATE_FAILED: _ClassVar[JobState]
    JOB_STATE_CANCELLED: _ClassVar[JobState]
    JOB_STATE_PLANNING: _ClassVar[JobState]

class EvalSubject(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVAL_SUBJECT_UNSPECIFIED: _ClassVar[EvalSubject]
    EVAL_SUBJECT_TRAINED: _ClassVar[EvalSubject]
    EVAL_SUBJECT_INT8: _ClassVar[EvalSubject]
    EVAL_SUBJECT_TERNARY: _ClassVar[EvalSubject]
JOB_STATE_UNSPECIFIED: JobState
JOB_STATE_QUEUED: JobState
JOB_STATE_PREPARING: JobState
JOB_STATE_RUNNING: JobState
JOB_STATE_PAUSING: JobState
JOB_STATE_PAUSED: JobState
JOB_STATE_CANCELLING: JobState
JOB_STATE_SUCCEEDED: JobState
JOB_STATE_FAILED: JobState
JOB_STATE_CANCELLED: JobState
JOB_STATE_PLANNING: JobState
EVAL_SUBJECT_UNSPECIFIED: EvalSubject
EVAL_SUBJECT_TRAINED: EvalSubject
EVAL_SUBJECT_INT8: EvalSubject
EVAL_SUBJECT_TERNARY: EvalSubject

class StateReason(_message.Message):
    __slots__ = ("reason", "message")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("step", "max_steps", "epoch", "tokens", "trainable_tokens", "percent", "eta", "tokens_per_s", "peak_memory_bytes", "queue_position", "update_time")
    STEP_FIELD_NUMBER: _ClassVar[int]
    MAX_STEPS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRAINABLE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PERCENT_FIELD_NUMBER: _ClassVar[int]
    ETA_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    PEAK_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    QUEUE_POSITION_FIELD_NUMBER: _ClassVar[int]
    UPDATE_TIME_FIELD_NUMBER: _ClassVar[int]
    step: int
    max_steps: int
    epoch: float
    tokens: int
    trainable_tokens: int
    percent: float
    eta: _duration_pb2.Duration
    tokens_per_s: float
    peak_memory_bytes: int
    queue_position: int
    update_time: _timestamp_pb2.Timestamp
    def __init__(self, step: _Optional[int] = ..., max_steps: _Optional[int] = ..., epoch: _Optional[float] = ..., tokens: _Optional[int] = ..., trainable_tokens: _Optional[int] = ..., percent: _Optional[float] = ..., eta: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping[str, object]]] = ..., tokens_per_s: _Optional[float] = ..., peak_memory_bytes: _Optional[int] = ..., queue_position: _Optional[int] = ..., update_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping[str, object]]] = ...) -> None: ...

class StepMetrics(_message.Message):
    __slots__ = ("step", "epoch", "loss", "lr", "grad_norm", "tokens", "trainable_tokens", "tokens_per_s", "step_ms", "kernel_launches", "peak_memory_bytes", "launches")
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    LR_FIELD_NUMBER: _ClassVar[int]
    GRAD_NORM_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRAINABLE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    STEP_MS_FIELD_NUMBER: _ClassVar[int]
    KERNEL_LAUNCHES_FIELD_NUMBER: _ClassVar[int]
    PEAK_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAUNCHES_FIELD_NUMBER: _ClassVar[int]
    step: int
    epoch: float
    loss: float
    lr: float
    grad_norm: float
    tokens: int
    trainable_tokens: int
    tokens_per_s: float
    step_ms: float
    kernel_launches: int
    peak_memory_bytes: int
    launches: _containers.RepeatedCompositeFieldContainer[_common_pb2.LaunchCount]
    def __init__(self, step: _Optional[int] = ..., epoch: _Optional[float] = ..., loss: _Optional[float] = ..., lr: _Optional[float] = ..., grad_norm: _Optional[float] = ..., tokens: _Optional[int] = ..., trainable_tokens: _Optional[int] = ..., tokens_per_s: _Optional[float] = ..., step_ms: _Optional[float] = ..., kernel_launches: _Optional[int] = ..., peak_memory_bytes: _Optional[int] = ..., launches: _Optional[_Iterable[_Union[_common_pb2.LaunchCount, _Mapping[str, object]]]] = ...) -> None: ...

class EvalResult(_message.Message):
    __slots__ = ("step", "eval_loss", "tokens", "subject", "duration_ms", "best")
    STEP_FIELD_NUMBER: _ClassVar[int]
    EVAL_LOSS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    BEST_FIELD_NUMBER: _ClassVar[int]
    step: int
    eval_loss: float
    tokens: int
    subject: EvalSubject
    duration_ms: float
    best: bool
    def __init__(self, step: _Optional[int] = ..., eval_loss: _Optional[float] = ..., tokens: _Optional[int] = ..., subject: _Optional[_Union[EvalSubject, str]] = ..., duration_ms: _Optional[float] = ..., best: _Optional[bool] = ...) -> None: ...

class StateChanged(_message.Message):
    __slots__ = ("to", "reason", "resumed_step")
    FROM_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RESUMED_STEP_FIELD_NUMBER: _ClassVar[int]
    to: JobState
    reason: StateReason
    resumed_step: int
    def __init__(self, to: _Optional[_Union[JobState, str]] = ..., reason: _Optional[_Union[StateReason, _Mapping[str, object]]] = ..., resumed_step: _Optional[int] = ..., **kwargs: object) -> None: ...

class CheckpointSaved(_message.Message):
    __slots__ = ("checkpoint",)
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    checkpoint: Checkpoint
    def __init__(self, checkpoint: _Optional[_Union[Checkpoint, _Mapping[str, object]]] = ...) -> None: ...

class ModelPublished(_message.Message):
    __slots__ = ("model", "format", "digest", "bytes")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    model: str
    format: _common_pb2.ModelFormat
    digest: str
    bytes: int
    def __init__(self, model: _Optional[str] = ..., format: _Optional[_Union[_common_pb2.ModelFormat, str]] = ..., digest: _Optional[str] = ..., bytes: _Optional[int] = ...) -> None: ...

class Warning(_message.Message):
    __slots__ = ("reason", "message", "row_ids")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ROW_IDS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    row_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ..., row_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class LogLine(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("job", "last_sequence", "oldest_sequence")
    JOB_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    OLDEST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    job: Job
    last_sequence: int
    oldest_sequence: int
    def __init__(self, job: _Optional[_Union[Job, _Mapping[str, object]]] = ..., last_sequence: _Optional[int] = ..., oldest_sequence: _Optional[int] = ...) -> None: ...

class JobEvent(_message.Message):
    __slots__ = ("sequence", "time", "severity", "attempt", "state", "step", "eval", "checkpoint", "model", "warning", "log", "snapshot")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EVAL_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    time: _timestamp_pb2.Timestamp
    severity: _common_pb2.Severity
    attempt: int
    state: StateChanged
    step: StepMetrics
    eval: EvalResult
    checkpoint: CheckpointSaved
    model: ModelPublished
    warning: Warning
    log: LogLine
    snapshot: Snapshot
    def __init__(self, sequence: _Optional[int] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping[str, object]]] = ..., severity: _Optional[_Union[_common_pb2.Severity, str]] = ..., attempt: _Optional[int] = ..., state: _Optional[_Union[StateChanged, _Mapping[str, object]]] = ..., step: _Optional[_Union[StepMetrics, _Mapping[str, object]]] = ..., eval: _Optional[_Union[EvalResult, _Mapping[str, object]]] = ..., checkpoint: _Optional[_Union[CheckpointSaved, _Mapping[str, object]]] = ..., model: _Optional[_Union[ModelPublished, _Mapping[str, object]]] = ..., warning: _Optional[_Union[Warning, _Mapping[str, object]]] = ..., log: _Optional[_Union[LogLine, _Mapping[str, object]]] = ..., snapshot: _Optional[_Union[Snapshot, _Mapping[str, object]]] = ...) -> None: ...

class Checkpoint(_message.Message):
    __slots__ = ("name", "step", "metrics", "resumable", "servable", "digest", "bytes", "create_time", "job", "attempt")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    RESUMABLE_FIELD_NUMBER: _ClassVar[int]
    SERVABLE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    name: str
    step: int
    metrics: _containers.ScalarMap[str, float]
    resumable: bool
    servable: bool
    digest: str
    bytes: int
    create_time: _timestamp_pb2.Timestamp
    job: str
    attempt: int
    def __init__(self, name: _Optional[str] = ..., step: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ..., resumable: _Optional[bool] = ..., servable: _Optional[bool] = ..., digest: _Optional[str] = ..., bytes: _Optional[int] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping[str, object]]] = ..., job: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class JobDigests(_message.Message):
    __slots__ = ("config", "data", "tokenizer", "code", "base_model", "eval_data")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    BASE_MODEL_FIELD_NUMBER: _ClassVar[int]
    EVAL_DATA_FIELD_NUMBER: _ClassVar[int]
    config: str
    data: str
    tokenizer: str
    code: str
    base_model: str
    eval_data: str
    def __init__(self, config: _Optional[str] = ..., data: _Optional[str] = ..., tokenizer: _Optional[str] = ..., code: _Optional[str] = ..., base_model: _Optional[str] = ..., eval_data: _Optional[str] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("name", "uid", "spec", "state", "state_reason", "progress", "latest_step", "latest_eval", "int8_eval", "best_checkpoint", "output_model", "error", "create_time", "start_time", "end_time", "attempt", "retries", "etag", "digests", "ternary_eval")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATE_REASON_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    LATEST_STEP_FIELD_NUMBER: _ClassVar[int]
    LATEST_EVAL_FIELD_NUMBER: _ClassVar[int]
    INT8_EVAL_FIELD_NUMBER: _ClassVar[int]
    BEST_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_MODEL_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    TERNARY_EVAL_FIELD_NUMBER: _ClassVar[int]
    name: str
    uid: str
    spec: _job_spec_pb2.JobSpec
    state: JobState
    state_reason: StateReason
    progress: Progress
    latest_step: StepMetrics
    latest_eval: EvalResult
    int8_eval: EvalResult
    best_checkpoint: Checkpoint
    output_model: str
    error: _status_pb2.Status
    create_time: _timestamp_pb2.Timestamp
    start_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    attempt: int
    retries: int
    etag: str
    digests: JobDigests
    ternary_eval: EvalResult
    def __init__(self, name: _Optional[str] = ..., uid: _Optional[str] = ..., spec: _Optional[_Union[_job_spec_pb2.JobSpec, _Mapping[str, object]]] = ..., state: _Optional[_Union[JobState, str]] = ..., state_reason: _Optional[_Union[StateReason, _Mapping[str, object]]] = ..., progress: _Optional[_Union[Progress, _Mapping[str, object]]] = ..., latest_step: _Optional[_Union[StepMetrics, _Mapping[str, object]]] = ..., latest_eval: _Optional[_Union[EvalResult, _Mapping[str, object]]] = ..., int8_eval: _Optional[_Union[EvalResult, _Mapping[str, object]]] = ..., best_checkpoint: _Optional[_Union[Checkpoint, _Mapping[str, object]]] = ..., output_model: _Optional[str] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping[str, object]]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping[str, object]]] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping[str, object]]] = ..., end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping[str, object]]] = ..., attempt: _Optional[int] = ..., retries: _Optional[int] = ..., etag: _Optional[str] = ..., digests: _Optional[_Union[JobDigests, _Mapping[str, object]]] = ..., ternary_eval: _Optional[_Union[EvalResult, _Mapping[str, object]]] = ...) -> None: ...

class PlanJobRequest(_message.Message):
    __slots__ = ("spec", "request_id")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    spec: _job_spec_pb2.JobSpec
    request_id: str
    def __init__(self, spec: _Optional[_Union[_job_spec_pb2.JobSpec, _Mapping[str, object]]] = ..., request_id: _Optional[str] = ...) -> None: ...

class MemoryItem(_message.Message):
    __slots__ = ("pool", "bytes")
    POOL_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    pool: str
    bytes: int
    def __init__(self, pool: _Optional[str] = ..., bytes: _Optional[int] = ...) -> None: ...

class PlanJobResponse(_message.Message):
    __slots__ = ("spec", "memory", "memory_total_bytes", "memory_available_bytes", "max_steps", "tokens", "trainable_tokens", "trainable_parameters", "eta", "warnings", "disk_bytes", "disk_available_bytes", "epochs")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_AVAILABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_STEPS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRAINABLE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRAINABLE_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    ETA_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_AVAILABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    spec: _job_spec_pb2.JobSpec
    memory: _containers.RepeatedCompositeFieldContainer[MemoryItem]
    memory_total_bytes: int
    memory_available_bytes: int
    max_steps: int
    tokens: int
    trainable_tokens: int
    trainable_parameters: int
    eta: _duration_pb2.Duration
    warnings: _containers.RepeatedCompositeFieldContainer[Warning]
    disk_bytes: int
    disk_available_bytes: int
    epochs: float
    def __init__(self, spec: _Optional[_Union[_job_spec_pb2.JobSpec, _Mapping[str, object]]] = ..., memory: _Optional[_Iterable[_Union[MemoryItem, _Mapping[str, object]]]] = ..., memory_total_bytes: _Optional[int] = ..., memory_available_bytes: _Optional[int] = ..., max_steps: _Optional[int] = ..., tokens: _Optional[int] = ..., trainable_tokens: _Optional[int] = ..., trainable_parameters: _Optional[int] = ..., eta: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping[str, object]]] = ..., warnings: _Optional[_Iterable[_Union[Warning, _Mapping[str, object]]]] = ..., disk_bytes: _Optional[int] = ..., disk_available_bytes: _Optional[int] = ..., epochs: _Optional[float] = ...) -> None: ...

class CreateJobRequest(_message.Message):
    __slots__ = ("spec", "request_id")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    spec: _job_spec_pb2.JobSpec
    request_id: str
    def __init__(self, spec: _Optional[_Union[_job_spec_pb2.JobSpec, _Mapping[str, object]]] = ..., request_id: _Optional[str] = ...) -> None: ...

class GetJobRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class JobFilter(_message.Message):
    __slots__ = ("states", "labels", "base_model")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    STATES_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    BASE_MODEL_FIELD_NUMBER: _ClassVar[int]
    states: _containers.RepeatedScalarFieldContainer[JobState]
    labels: _containers.ScalarMap[str, str]
    base_model: str
    def __init__(self, states: _Optional[_Iterable[_Union[JobState, str]]] = ..., labels: _Optional[_Mapping[str, str]] = ..., base_model: _Optional[str] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ("filter", "page_size", "page_token", "created_before")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CREATED_BEFORE_FIELD_NUMBER: _ClassVar[int]
    filter: JobFilter
    page_size: int
    page_token: str
    created_before: str
    def __init__(self, filter: _Optional[_Union[JobFilter, _Mapping[str, object]]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., created_before: _Optional[str] = ...) -> None: ...

class ListJobsResponse(_message.Message):
    __slots__ = ("jobs", "next_page_token")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    next_page_token: str
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping[str, object]]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class DeleteJobRequest(_message.Message):
    __slots__ = ("name", "etag")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    name: str
    etag: str
    def __init__(self, name: _Optional[str] = ..., etag: _Optional[str] = ...) -> None: ...

class DeleteJobResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchJobRequest(_message.Message):
    __slots__ = ("name", "after_sequence")
    NAME_FIELD_NUMBER: _ClassVar[int]
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    after_sequence: int
    def __init__(self, name: _Optional[str] = ..., after_sequence: _Optional[int] = ...) -> None: ...

class WatchJobLogsRequest(_message.Message):
    __slots__ = ("name", "attempt", "follow", "offset", "tail_lines")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TAIL_LINES_FIELD_NUMBER: _ClassVar[int]
    name: str
    attempt: int
    follow: bool
    offset: int
    tail_lines: int
    def __init__(self, name: _Optional[str] = ..., attempt: _Optional[int] = ..., follow: _Optional[bool] = ..., offset: _Optional[int] = ..., tail_lines: _Optional[int] = ...) -> None: ...

class JobLogChunk(_message.Message):
    __slots__ = ("attempt", "offset", "data")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    offset: int
    data: bytes
    def __init__(self, attempt: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class ListJobEventsRequest(_message.Message):
    __slots__ = ("name", "after_sequence", "page_size", "page_token", "newest_first", "before_sequence")
    NAME_FIELD_NUMBER: _ClassVar[int]
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIRST_FIELD_NUMBER: _ClassVar[int]
    BEFORE_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    after_sequence: int
    page_size: int
    page_token: str
    newest_first: bool
    before_sequence: int
    def __init__(self, name: _Optional[str] = ..., after_sequence: _Optional[int] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., newest_first: _Optional[bool] = ..., before_sequence: _Optional[int] = ...) -> None: ...

class ListJobEventsResponse(_message.Message):
    __slots__ = ("events", "next_page_token")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[JobEvent]
    next_page_token: str
    def __init__(self, events: _Optional[_Iterable[_Union[JobEvent, _Mapping[str, object]]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListCheckpointsRequest(_message.Message):
    __slots__ = ("name", "page_size", "page_token")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    name: str
    page_size: int
    page_token: str
    def __init__(self, name: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListCheckpointsResponse(_message.Message):
    __slots__ = ("checkpoints", "next_page_token")
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    checkpoints: _containers.RepeatedCompositeFieldContainer[Checkpoint]
    next_page_token: str
    def __init__(self, checkpoints: _Optional[_Iterable[_Union[Checkpoint, _Mapping[str, object]]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class CancelJobRequest(_message.Message):
    __slots__ = ("name", "etag", "keep_checkpoint")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    KEEP_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    name: str
    etag: str
    keep_checkpoint: bool
    def __init__(self, name: _Optional[str] = ..., etag: _Optional[str] = ..., keep_checkpoint: _Optional[bool] = ...) -> None: ...

class PauseJobRequest(_message.Message):
    __slots__ = ("name", "etag")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    name: str
    etag: str
    def __init__(self, name: _Optional[str] = ..., etag: _Optional[str] = ...) -> None: ...

class ResumeJobRequest(_message.Message):
    __slots__ = ("name", "etag")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    name: str
    etag: str
    def __init__(self, name: _Optional[str] = ..., etag: _Optional[str] = ...) -> None: ...

class CheckpointJobRequest(_message.Message):
    __slots__ = ("name", "etag")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    name: str
    etag: str
    def __init__(self, name: _Optional[str] = ..., etag: _Optional[str] = ...) -> None: ...
