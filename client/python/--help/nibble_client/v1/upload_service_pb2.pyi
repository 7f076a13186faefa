import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class UploadKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UPLOAD_KIND_UNSPECIFIED: _ClassVar[UploadKind]
    UPLOAD_KIND_DATASET: _ClassVar[UploadKind]
    UPLOAD_KIND_MODEL: _ClassVar[UploadKind]

class UploadState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UPLOAD_STATE_UNSPECIFIED: _ClassVar[UploadState]
    UPLOAD_STATE_RECEIVING: _ClassVar[UploadState]
    UPLOAD_STATE_INTERRUPTED: _ClassVar[UploadState]
    UPLOAD_STATE_FINISHING: _ClassVar[UploadState]
    UPLOAD_STATE_FINISHED: _ClassVar[UploadState]
UPLOAD_KIND_UNSPECIFIED: UploadKind
UPLOAD_KIND_DATASET: UploadKind
UPLOAD_KIND_MODEL: UploadKind
UPLOAD_STATE_UNSPECIFIED: UploadState
UPLOAD_STATE_RECEIVING: UploadState
UPLOAD_STATE_INTERRUPTED: UploadState
UPLOAD_STATE_FINISHING: UploadState
UPLOAD_STATE_FINISHED: UploadState

class Upload(_message.Message):
    __slots__ = ("upload_id", "kind", "state", "name", "committed_bytes", "num_files", "create_time", "expire_time", "principal")
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_FILES_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    kind: UploadKind
    state: UploadState
    name: str
    committed_bytes: int
    num_files: int
    create_time: _timestamp_pb2.Timestamp
    expire_time: _timestamp_pb2.Timestamp
    principal: str
    def __init__(self, upload_id: _Optional[str] = ..., kind: _Optional[_Union[UploadKind, str]] = ..., state: _Optional[_Union[UploadState, str]] = ..., name: _Optional[str] = ..., committed_bytes: _Optional[int] = ..., num_files: _Optional[int] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping[str, object]]] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping[str, object]]] = ..., principal: _Optional[str] = ...) -> None: ...

class GetUploadRequest(_message.Message):
    __slots__ = ("upload_id",)
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    def __init__(self, upload_id: _Optional[str] = ...) -> None: ...

class ListUploadsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListUploadsResponse(_message.Message):
    __slots__ = ("uploads", "next_page_token")
    UPLOADS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    uploads: _containers.RepeatedCompositeFieldContainer[Upload]
    next_page_token: str
    def __init__(self, uploads: _Optional[_Iterable[_Union[Upload, _Mapping[str, object]]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class CancelUploadRequest(_message.Message):
    __slots__ = ("upload_id",)
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    def __init__(self, upload_id: _Optional[str] = ...) -> None: ...

class CancelUploadResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
