import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from nibble_client.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetServerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ServerLimits(_message.Message):
    __slots__ = ("max_message_bytes", "max_chunk_bytes", "max_dataset_bytes", "max_model_bytes", "max_waiting_requests", "max_running_requests", "max_queued_jobs", "max_dataset_line_bytes", "max_tokenizer_bytes", "max_stream_age", "generate_deadline", "operation_deadline", "max_jobs_per_principal", "max_upload_bytes_per_principal", "upload_kept")
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_DATASET_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_WAITING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MAX_RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUED_JOBS_FIELD_NUMBER: _ClassVar[int]
    MAX_DATASET_LINE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENIZER_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_STREAM_AGE_FIELD_NUMBER: _ClassVar[int]
    GENERATE_DEADLINE_FIELD_NUMBER: _ClassVar[int]
    OPERATION_DEADLINE_FIELD_NUMBER: _ClassVar[int]
    MAX_JOBS_PER_PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    MAX_UPLOAD_BYTES_PER_PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_KEPT_FIELD_NUMBER: _ClassVar[int]
    max_message_bytes: int
    max_chunk_bytes: int
    max_dataset_bytes: int
    max_model_bytes: int
    max_waiting_requests: int
    max_running_requests: int
    max_queued_jobs: int
    max_dataset_line_bytes: int
    max_tokenizer_bytes: int
    max_stream_age: _duration_pb2.Duration
    generate_deadline: _duration_pb2.Duration
    operation_deadline: _duration_pb2.Duration
    max_jobs_per_principal: int
    max_upload_bytes_per_principal: int
    upload_kept: _duration_pb2.Duration
    def __init__(self, max_message_bytes: _Optional[int] = ..., max_chunk_bytes: _Optional[int] = ..., max_dataset_bytes: _Optional[int] = ..., max_model_bytes: _Optional[int] = ..., max_waiting_requests: _Optional[int] = ..., max_running_requests: _Optional[int] = ..., max_queued_jobs: _Optional[int] = ..., max_dataset_line_bytes: _Optional[int] = ..., max_tokenizer_bytes: _Optional[int] = ..., max_stream_age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping[str, object]]] = ..., generate_deadline: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping[str, object]]] = ..., operation_deadline: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping[str, object]]] = ..., max_jobs_per_principal: _Optional[int] = ..., max_upload_bytes_per_principal: _Optional[int] = ..., upload_kept: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping[str, object]]] = ...) -> None: ...

class ServerInfo(_message.Message):
    __slots__ = ("version", "commit", "start_time", "devices", "threads", "job_methods", "serve_formats", "convert_formats", "export_formats", "unimplemented", "limits", "code_digest", "cuda_version", "runner", "kubernetes_namespace", "kubernetes_queue")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    JOB_METHODS_FIELD_NUMBER: _ClassVar[int]
    SERVE_FORMATS_FIELD_NUMBER: _ClassVar[int]
    CONVERT_FORMATS_FIELD_NUMBER: _ClassVar[int]
    EXPORT_FORMATS_FIELD_NUMBER: _ClassVar[int]
    UNIMPLEMENTED_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    CODE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CUDA_VERSION_FIELD_NUMBER: _ClassVar[int]
    RUNNER_FIELD_NUMBER: _ClassVar[int]
    KUBERNETES_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KUBERNETES_QUEUE_FIELD_NUMBER: _ClassVar[int]
    version: str
    commit: str
    start_time: _timestamp_pb2.Timestamp
    devices: _containers.RepeatedCompositeFieldContainer[_common_pb2.DeviceInfo]
    threads: int
    job_methods: _containers.RepeatedScalarFieldContainer[str]
    serve_formats: _containers.RepeatedScalarFieldContainer[str]
    convert_formats: _containers.RepeatedScalarFieldContainer[str]
    export_formats: _containers.RepeatedScalarFieldContainer[str]
    unimplemented: _containers.RepeatedScalarFieldContainer[str]
    limits: ServerLimits
    code_digest: str
    cuda_version: str
    runner: str
    kubernetes_namespace: str
    kubernetes_queue: str
    def __init__(self, version: _Optional[str] = ..., commit: _Optional[str] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping[str, object]]] = ..., devices: _Optional[_Iterable[_Union[_common_pb2.DeviceInfo, _Mapping[str, object]]]] = ..., threads: _Optional[int] = ..., job_methods: _Optional[_Iterable[str]] = ..., serve_formats: _Optional[_Iterable[str]] = ..., convert_formats: _Optional[_Iterable[str]] = ..., export_formats: _Optional[_Iterable[str]] = ..., unimplemented: _Optional[_Iterable[str]] = ..., limits: _Optional[_Union[ServerLimits, _Mapping[str, object]]] = ..., code_digest: _Optional[str] = ..., cuda_version: _Optional[str] = ..., runner: _Optional[str] = ..., kubernetes_namespace: _Optional[str] = ..., kubernetes_queue: _Optional[str] = ...) -> None: ...

class GetLoadRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchLoadRequest(_message.Message):
    __slots__ = ("interval",)
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    interval: _duration_pb2.Duration
    def __init__(self, interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping[str, object]]] = ...) -> None: ...

class ServerLoad(_message.Message):
    __slots__ = ("time", "requests_running", "requests_waiting", "kv_blocks_used", "kv_blocks_total", "residents", "jobs_queued", "jobs_running", "rss_bytes", "requests_total", "prompt_tokens_total", "generated_tokens_total", "ready", "draining")
    TIME_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_WAITING_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCKS_USED_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    RESIDENTS_FIELD_NUMBER: _ClassVar[int]
    JOBS_QUEUED_FIELD_NUMBER: _ClassVar[int]
    JOBS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    time: _timestamp_pb2.Timestamp
    requests_running: int
    requests_waiting: int
    kv_blocks_used: int
    kv_blocks_total: int
    residents: _common_pb2.Residents
    jobs_queued: int
    jobs_running: int
    rss_bytes: int
    requests_total: int
    prompt_tokens_total: int
    generated_tokens_total: int
    ready: bool
    draining: bool
    def __init__(self, time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping[str, object]]] = ..., requests_running: _Optional[int] = ..., requests_waiting: _Optional[int] = ..., kv_blocks_used: _Optional[int] = ..., kv_blocks_total: _Optional[int] = ..., residents: _Optional[_Union[_common_pb2.Residents, _Mapping[str, object]]] = ..., jobs_queued: _Optional[int] = ..., jobs_running: _Optional[int] = ..., rss_bytes: _Optional[int] = ..., requests_total: _Optional[int] = ..., prompt_tokens_total: _Optional[int] = ..., generated_tokens_total: _Optional[int] = ..., ready: _Optional[bool] = ..., draining: _Optional[bool] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("deadline",)
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    deadline: _duration_pb2.Duration
    def __init__(self, deadline: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping[str, object]]] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResourcePolicy(_message.Message):
    __slots__ = ("serve_share",)
    SERVE_SHARE_FIELD_NUMBER: _ClassVar[int]
    serve_share: float
    def __init__(self, serve_share: _Optional[float] = ...) -> None: ...

class SetResourcePolicyRequest(_message.Message):
    __slots__ = ("policy",)
    POLICY_FIELD_NUMBER: _ClassVar[int]
    policy: ResourcePolicy
    def __init__(self, policy: _Optional[_Union[ResourcePolicy, _Mapping[str, object]]] = ...) -> None: ...
