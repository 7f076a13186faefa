import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DeviceKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEVICE_KIND_UNSPECIFIED: _ClassVar[DeviceKind]
    DEVICE_KIND_AUTO: _ClassVar[DeviceKind]
    DEVICE_KIND_CPU: _ClassVar[DeviceKind]
    DEVICE_KIND_CUDA: _ClassVar[DeviceKind]

class Severity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEVERITY_UNSPECIFIED: _ClassVar[Severity]
    SEVERITY_INFO: _ClassVar[Severity]
    SEVERITY_WARNING: _ClassVar[Severity]
    SEVERITY_ERROR: _ClassVar[Severity]

class ModelFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODEL_FORMAT_UNSPECIFIED: _ClassVar[ModelFormat]
    MODEL_FORMAT_F32: _ClassVar[ModelFormat]
    MODEL_FORMAT_BF16: _ClassVar[ModelFormat]
    MODEL_FORMAT_NF4: _ClassVar[ModelFormat]
    MODEL_FORMAT_INT8: _ClassVar[ModelFormat]
    MODEL_FORMAT_TERNARY: _ClassVar[ModelFormat]
    MODEL_FORMAT_LORA: _ClassVar[ModelFormat]

class Determinism(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DETERMINISM_UNSPECIFIED: _ClassVar[Determinism]
    DETERMINISM_EXACT: _ClassVar[Determinism]
    DETERMINISM_BEST_EFFORT: _ClassVar[Determinism]
DEVICE_KIND_UNSPECIFIED: DeviceKind
DEVICE_KIND_AUTO: DeviceKind
DEVICE_KIND_CPU: DeviceKind
DEVICE_KIND_CUDA: DeviceKind
SEVERITY_UNSPECIFIED: Severity
SEVERITY_INFO: Severity
SEVERITY_WARNING: Severity
SEVERITY_ERROR: Severity
MODEL_FORMAT_UNSPECIFIED: ModelFormat
MODEL_FORMAT_F32: ModelFormat
MODEL_FORMAT_BF16: ModelFormat
MODEL_FORMAT_NF4: ModelFormat
MODEL_FORMAT_INT8: ModelFormat
MODEL_FORMAT_TERNARY: ModelFormat
MODEL_FORMAT_LORA: ModelFormat
DETERMINISM_UNSPECIFIED: Determinism
DETERMINISM_EXACT: Determinism
DETERMINISM_BEST_EFFORT: Determinism

class Device(_message.Message):
    __slots__ = ("kind", "ordinal")
    KIND_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    kind: DeviceKind
    ordinal: int
    def __init__(self, kind: _Optional[_Union[DeviceKind, str]] = ..., ordinal: _Optional[int] = ...) -> None: ...

class DeviceInfo(_message.Message):
    __slots__ = ("device", "name", "isa", "memory_total_bytes", "memory_free_bytes")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ISA_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    device: Device
    name: str
    isa: str
    memory_total_bytes: int
    memory_free_bytes: int
    def __init__(self, device: _Optional[_Union[Device, _Mapping[str, object]]] = ..., name: _Optional[str] = ..., isa: _Optional[str] = ..., memory_total_bytes: _Optional[int] = ..., memory_free_bytes: _Optional[int] = ...) -> None: ...

class FileEntry(_message.Message):
    __slots__ = ("path", "size_bytes", "sha256")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    path: str
    size_bytes: int
    sha256: str
    def __init__(self, path: _Optional[str] = ..., size_bytes: _Optional[int] = ..., sha256: _Optional[str] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ChatMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class ChatInput(_message.Message):
    __slots__ = ("messages", "add_generation_prompt")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    ADD_GENERATION_PROMPT_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    add_generation_prompt: bool
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping[str, object]]]] = ..., add_generation_prompt: _Optional[bool] = ...) -> None: ...

class LaunchCount(_message.Message):
    __slots__ = ("kernel", "phase", "count")
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    kernel: str
    phase: str
    count: int
    def __init__(self, kernel: _Optional[str] = ..., phase: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class ResidentModel(_message.Message):
    __slots__ = ("name", "format", "digest", "device", "bytes", "active_requests", "load_time")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    LOAD_TIME_FIELD_NUMBER: _ClassVar[int]
    name: str
    format: ModelFormat
    digest: str
    device: Device
    bytes: int
    active_requests: int
    load_time: _timestamp_pb2.Timestamp
    def __init__(self, name: _Optional[str] = ..., format: _Optional[_Union[ModelFormat, str]] = ..., digest: _Optional[str] = ..., device: _Optional[_Union[Device, _Mapping[str, object]]] = ..., bytes: _Optional[int] = ..., active_requests: _Optional[int] = ..., load_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping[str, object]]] = ...) -> None: ...

class Residents(_message.Message):
    __slots__ = ("models", "weights_bytes", "kv_bytes")
    MODELS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[ResidentModel]
    weights_bytes: int
    kv_bytes: int
    def __init__(self, models: _Optional[_Iterable[_Union[ResidentModel, _Mapping[str, object]]]] = ..., weights_bytes: _Optional[int] = ..., kv_bytes: _Optional[int] = ...) -> None: ...
