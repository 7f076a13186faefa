import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DatasetFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DATASET_FORMAT_UNSPECIFIED: _ClassVar[DatasetFormat]
    DATASET_FORMAT_TEXT: _ClassVar[DatasetFormat]
    DATASET_FORMAT_PROMPT_COMPLETION: _ClassVar[DatasetFormat]
    DATASET_FORMAT_CHAT: _ClassVar[DatasetFormat]
    DATASET_FORMAT_INSTRUCTION: _ClassVar[DatasetFormat]
    DATASET_FORMAT_TOKENIZED: _ClassVar[DatasetFormat]

class OverlongPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OVERLONG_POLICY_UNSPECIFIED: _ClassVar[OverlongPolicy]
    OVERLONG_POLICY_TRUNCATE: _ClassVar[OverlongPolicy]
    OVERLONG_POLICY_DROP: _ClassVar[OverlongPolicy]
    OVERLONG_POLICY_ERROR: _ClassVar[OverlongPolicy]
    OVERLONG_POLICY_SPLIT: _ClassVar[OverlongPolicy]

class PackingMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PACKING_MODE_UNSPECIFIED: _ClassVar[PackingMode]
    PACKING_MODE_NONE: _ClassVar[PackingMode]
    PACKING_MODE_SEGMENTED: _ClassVar[PackingMode]

class EosPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EOS_POLICY_UNSPECIFIED: _ClassVar[EosPolicy]
    EOS_POLICY_ALL: _ClassVar[EosPolicy]
    EOS_POLICY_TURN: _ClassVar[EosPolicy]
    EOS_POLICY_LAST: _ClassVar[EosPolicy]
    EOS_POLICY_NONE: _ClassVar[EosPolicy]
DATASET_FORMAT_UNSPECIFIED: DatasetFormat
DATASET_FORMAT_TEXT: DatasetFormat
DATASET_FORMAT_PROMPT_COMPLETION: DatasetFormat
DATASET_FORMAT_CHAT: DatasetFormat
DATASET_FORMAT_INSTRUCTION: DatasetFormat
DATASET_FORMAT_TOKENIZED: DatasetFormat
OVERLONG_POLICY_UNSPECIFIED: OverlongPolicy
OVERLONG_POLICY_TRUNCATE: OverlongPolicy
OVERLONG_POLICY_DROP: OverlongPolicy
OVERLONG_POLICY_ERROR: OverlongPolicy
OVERLONG_POLICY_SPLIT: OverlongPolicy
PACKING_MODE_UNSPECIFIED: PackingMode
PACKING_MODE_NONE: PackingMode
PACKING_MODE_SEGMENTED: PackingMode
EOS_POLICY_UNSPECIFIED: EosPolicy
EOS_POLICY_ALL: EosPolicy
EOS_POLICY_TURN: EosPolicy
EOS_POLICY_LAST: EosPolicy
EOS_POLICY_NONE: EosPolicy

class LossMask(_message.Message):
    __slots__ = ("train_on_prompt", "roles", "eos", "honour_message_flag")
    TRAIN_ON_PROMPT_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    EOS_FIELD_NUMBER: _ClassVar[int]
    HONOUR_MESSAGE_FLAG_FIELD_NUMBER: _ClassVar[int]
    train_on_prompt: bool
    roles: _containers.RepeatedScalarFieldContainer[str]
    eos: EosPolicy
    honour_message_flag: bool
    def __init__(self, train_on_prompt: _Optional[bool] = ..., roles: _Optional[_Iterable[str]] = ..., eos: _Optional[_Union[EosPolicy, str]] = ..., honour_message_flag: _Optional[bool] = ...) -> None: ...

class ChatTemplate(_message.Message):
    __slots__ = ("named", "jinja")
    NAMED_FIELD_NUMBER: _ClassVar[int]
    JINJA_FIELD_NUMBER: _ClassVar[int]
    named: str
    jinja: str
    def __init__(self, named: _Optional[str] = ..., jinja: _Optional[str] = ...) -> None: ...

class DataConfig(_message.Message):
    __slots__ = ("format", "field_map", "loss_mask", "chat_template", "max_seq_len", "overlong", "packing", "shuffle_seed", "shuffle", "add_special_tokens")
    class FieldMapEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    FIELD_MAP_FIELD_NUMBER: _ClassVar[int]
    LOSS_MASK_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQ_LEN_FIELD_NUMBER: _ClassVar[int]
    OVERLONG_FIELD_NUMBER: _ClassVar[int]
    PACKING_FIELD_NUMBER: _ClassVar[int]
    SHUFFLE_SEED_FIELD_NUMBER: _ClassVar[int]
    SHUFFLE_FIELD_NUMBER: _ClassVar[int]
    ADD_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    format: DatasetFormat
    field_map: _containers.ScalarMap[str, str]
    loss_mask: LossMask
    chat_template: ChatTemplate
    max_seq_len: int
    overlong: OverlongPolicy
    packing: PackingMode
    shuffle_seed: int
    shuffle: bool
    add_special_tokens: bool
    def __init__(self, format: _Optional[_Union[DatasetFormat, str]] = ..., field_map: _Optional[_Mapping[str, str]] = ..., loss_mask: _Optional[_Union[LossMask, _Mapping[str, object]]] = ..., chat_template: _Optional[_Union[ChatTemplate, _Mapping[str, object]]] = ..., max_seq_len: _Optional[int] = ..., overlong: _Optional[_Union[OverlongPolicy, str]] = ..., packing: _Optional[_Union[PackingMode, str]] = ..., shuffle_seed: _Optional[int] = ..., shuffle: _Optional[bool] = ..., add_special_tokens: _Optional[bool] = ...) -> None: ...

class Dataset(_message.Message):
    __slots__ = ("name", "format", "rows", "bytes", "sha256", "create_time", "etag", "damaged", "warnings", "file_name")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    FILE_NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    format: DatasetFormat
    rows: int
    bytes: int
    sha256: str
    create_time: _timestamp_pb2.Timestamp
    etag: str
    damaged: bool
    warnings: _containers.RepeatedCompositeFieldContainer[RowWarning]
    file_name: str
    def __init__(self, name: _Optional[str] = ..., format: _Optional[_Union[DatasetFormat, str]] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., sha256: _Optional[str] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping[str, object]]] = ..., etag: _Optional[str] = ..., damaged: _Optional[bool] = ..., warnings: _Optional[_Iterable[_Union[RowWarning, _Mapping[str, object]]]] = ..., file_name: _Optional[str] = ...) -> None: ...

class UploadDatasetHeader(_message.Message):
    __slots__ = ("name", "format", "size_bytes", "field_map", "server_path", "upload_id", "resume_offset", "file_name")
    class FieldMapEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FIELD_MAP_FIELD_NUMBER: _ClassVar[int]
    SERVER_PATH_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    RESUME_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FILE_NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    format: DatasetFormat
    size_bytes: int
    field_map: _containers.ScalarMap[str, str]
    server_path: str
    upload_id: str
    resume_offset: int
    file_name: str
    def __init__(self, name: _Optional[str] = ..., format: _Optional[_Union[DatasetFormat, str]] = ..., size_bytes: _Optional[int] = ..., field_map: _Optional[_Mapping[str, str]] = ..., server_path: _Optional[str] = ..., upload_id: _Optional[str] = ..., resume_offset: _Optional[int] = ..., file_name: _Optional[str] = ...) -> None: ...

class UploadFinish(_message.Message):
    __slots__ = ("sha256",)
    SHA256_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    def __init__(self, sha256: _Optional[str] = ...) -> None: ...

class UploadDatasetRequest(_message.Message):
    __slots__ = ("header", "chunk", "finish")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    header: UploadDatasetHeader
    chunk: bytes
    finish: UploadFinish
    def __init__(self, header: _Optional[_Union[UploadDatasetHeader, _Mapping[str, object]]] = ..., chunk: _Optional[bytes] = ..., finish: _Optional[_Union[UploadFinish, _Mapping[str, object]]] = ...) -> None: ...

class GetDatasetRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListDatasetsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListDatasetsResponse(_message.Message):
    __slots__ = ("datasets", "next_page_token")
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    datasets: _containers.RepeatedCompositeFieldContainer[Dataset]
    next_page_token: str
    def __init__(self, datasets: _Optional[_Iterable[_Union[Dataset, _Mapping[str, object]]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class DeleteDatasetRequest(_message.Message):
    __slots__ = ("name", "etag")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    name: str
    etag: str
    def __init__(self, name: _Optional[str] = ..., etag: _Optional[str] = ...) -> None: ...

class DeleteDatasetResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PreviewDatasetRequest(_message.Message):
    __slots__ = ("dataset", "model", "data", "n")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    model: str
    data: DataConfig
    n: int
    def __init__(self, dataset: _Optional[str] = ..., model: _Optional[str] = ..., data: _Optional[_Union[DataConfig, _Mapping[str, object]]] = ..., n: _Optional[int] = ...) -> None: ...

class PreviewRow(_message.Message):
    __slots__ = ("row", "text", "token_ids", "trained", "token_texts", "truncated_tokens", "part")
    ROW_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_TEXTS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    row: int
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    trained: _containers.RepeatedScalarFieldContainer[bool]
    token_texts: _containers.RepeatedScalarFieldContainer[str]
    truncated_tokens: int
    part: int
    def __init__(self, row: _Optional[int] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., trained: _Optional[_Iterable[bool]] = ..., token_texts: _Optional[_Iterable[str]] = ..., truncated_tokens: _Optional[int] = ..., part: _Optional[int] = ...) -> None: ...

class RowWarning(_message.Message):
    __slots__ = ("reason", "message", "row_ids")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ROW_IDS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    row_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ..., row_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class PreviewDatasetResponse(_message.Message):
    __slots__ = ("rows", "total_rows", "tokens", "trainable_tokens", "truncated_rows", "dropped_rows", "split_rows", "looked_rows", "warnings")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_ROWS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRAINABLE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_ROWS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_ROWS_FIELD_NUMBER: _ClassVar[int]
    SPLIT_ROWS_FIELD_NUMBER: _ClassVar[int]
    LOOKED_ROWS_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[PreviewRow]
    total_rows: int
    tokens: int
    trainable_tokens: int
    truncated_rows: int
    dropped_rows: int
    split_rows: int
    looked_rows: int
    warnings: _containers.RepeatedCompositeFieldContainer[RowWarning]
    def __init__(self, rows: _Optional[_Iterable[_Union[PreviewRow, _Mapping[str, object]]]] = ..., total_rows: _Optional[int] = ..., tokens: _Optional[int] = ..., trainable_tokens: _Optional[int] = ..., truncated_rows: _Optional[int] = ..., dropped_rows: _Optional[int] = ..., split_rows: _Optional[int] = ..., looked_rows: _Optional[int] = ..., warnings: _Optional[_Iterable[_Union[RowWarning, _Mapping[str, object]]]] = ...) -> None: ...

class DownloadDatasetRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DownloadDatasetResponse(_message.Message):
    __slots__ = ("chunk",)
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    chunk: bytes
    def __init__(self, chunk: _Optional[bytes] = ...) -> None: ...
