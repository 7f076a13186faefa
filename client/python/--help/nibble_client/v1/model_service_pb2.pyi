import datetime

from google.longrunning import operations_pb2 as _operations_pb2  # type: ignore[import-untyped]
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from nibble_client.v1 import common_pb2 as _common_pb2
from nibble_client.v1 import dataset_service_pb2 as _dataset_service_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ModelOrigin(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODEL_ORIGIN_UNSPECIFIED: _ClassVar[ModelOrigin]
    MODEL_ORIGIN_IMPORT: _ClassVar[ModelOrigin]
    MODEL_ORIGIN_JOB: _ClassVar[ModelOrigin]
    MODEL_ORIGIN_CONVERT: _ClassVar[ModelOrigin]
    MODEL_ORIGIN_CHECKPOINT: _ClassVar[ModelOrigin]

class LoraHandling(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LORA_HANDLING_UNSPECIFIED: _ClassVar[LoraHandling]
    LORA_HANDLING_KEEP: _ClassVar[LoraHandling]
    LORA_HANDLING_MERGE: _ClassVar[LoraHandling]
    LORA_HANDLING_MERGE_AWARE: _ClassVar[LoraHandling]

class AdapterInitMethod(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ADAPTER_INIT_METHOD_UNSPECIFIED: _ClassVar[AdapterInitMethod]
    ADAPTER_INIT_METHOD_PISSA: _ClassVar[AdapterInitMethod]
    ADAPTER_INIT_METHOD_LOFTQ: _ClassVar[AdapterInitMethod]

class ExportFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXPORT_FORMAT_UNSPECIFIED: _ClassVar[ExportFormat]
    EXPORT_FORMAT_PEFT: _ClassVar[ExportFormat]
    EXPORT_FORMAT_HF: _ClassVar[ExportFormat]
    EXPORT_FORMAT_HF_BITNET: _ClassVar[ExportFormat]
    EXPORT_FORMAT_COMPRESSED_TENSORS: _ClassVar[ExportFormat]
    EXPORT_FORMAT_GGUF: _ClassVar[ExportFormat]

class HfLinearClass(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HF_LINEAR_CLASS_UNSPECIFIED: _ClassVar[HfLinearClass]
    HF_LINEAR_CLASS_BITLINEAR: _ClassVar[HfLinearClass]
    HF_LINEAR_CLASS_AUTOBITLINEAR: _ClassVar[HfLinearClass]
MODEL_ORIGIN_UNSPECIFIED: ModelOrigin
MODEL_ORIGIN_IMPORT: ModelOrigin
MODEL_ORIGIN_JOB: ModelOrigin
MODEL_ORIGIN_CONVERT: ModelOrigin
MODEL_ORIGIN_CHECKPOINT: ModelOrigin
LORA_HANDLING_UNSPECIFIED: LoraHandling
LORA_HANDLING_KEEP: LoraHandling
LORA_HANDLING_MERGE: LoraHandling
LORA_HANDLING_MERGE_AWARE: LoraHandling
ADAPTER_INIT_METHOD_UNSPECIFIED: AdapterInitMethod
ADAPTER_INIT_METHOD_PISSA: AdapterInitMethod
ADAPTER_INIT_METHOD_LOFTQ: AdapterInitMethod
EXPORT_FORMAT_UNSPECIFIED: ExportFormat
EXPORT_FORMAT_PEFT: ExportFormat
EXPORT_FORMAT_HF: ExportFormat
EXPORT_FORMAT_HF_BITNET: ExportFormat
EXPORT_FORMAT_COMPRESSED_TENSORS: ExportFormat
EXPORT_FORMAT_GGUF: ExportFormat
HF_LINEAR_CLASS_UNSPECIFIED: HfLinearClass
HF_LINEAR_CLASS_BITLINEAR: HfLinearClass
HF_LINEAR_CLASS_AUTOBITLINEAR: HfLinearClass

class ModelArchitecture(_message.Message):
    __slots__ = ("family", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_size", "intermediate_size", "vocab_size", "max_positions", "tied_embeddings")
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    NUM_HEADS_FIELD_NUMBER: _ClassVar[int]
    NUM_KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_SIZE_FIELD_NUMBER: _ClassVar[int]
    INTERMEDIATE_SIZE_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    TIED_EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    family: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    intermediate_size: int
    vocab_size: int
    max_positions: int
    tied_embeddings: bool
    def __init__(self, family: _Optional[str] = ..., hidden_size: _Optional[int] = ..., num_layers: _Optional[int] = ..., num_heads: _Optional[int] = ..., num_kv_heads: _Optional[int] = ..., head_size: _Optional[int] = ..., intermediate_size: _Optional[int] = ..., vocab_size: _Optional[int] = ..., max_positions: _Optional[int] = ..., tied_embeddings: _Optional[bool] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "format", "digest", "bytes", "architecture", "parameters", "base_model", "base_digest", "origin", "source", "determinism", "tokenizer_digest", "has_chat_template", "act_outliers", "head_format", "record_rows", "recorded_by", "loaded", "create_time", "etag", "conversion", "damaged", "trained_format", "activations", "nf4_block", "double_quant", "scaler_block")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    BASE_MODEL_FIELD_NUMBER: _ClassVar[int]
    BASE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DETERMINISM_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    HAS_CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    ACT_OUTLIERS_FIELD_NUMBER: _ClassVar[int]
    HEAD_FORMAT_FIELD_NUMBER: _ClassVar[int]
    RECORD_ROWS_FIELD_NUMBER: _ClassVar[int]
    RECORDED_BY_FIELD_NUMBER: _ClassVar[int]
    LOADED_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    CONVERSION_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FORMAT_FIELD_NUMBER: _ClassVar[int]
    ACTIVATIONS_FIELD_NUMBER: _ClassVar[int]
    NF4_BLOCK_FIELD_NUMBER: _ClassVar[int]
    DOUBLE_QUANT_FIELD_NUMBER: _ClassVar[int]
    SCALER_BLOCK_FIELD_NUMBER: _ClassVar[int]
    name: str
    format: _common_pb2.ModelFormat
    digest: str
    bytes: int
    architecture: ModelArchitecture
    parameters: int
    base_model: str
    base_digest: str
    origin: ModelOrigin
    source: str
    determinism: _common_pb2.Determinism
    tokenizer_digest: str
    has_chat_template: bool
    act_outliers: int
    head_format: _common_pb2.ModelFormat
    record_rows: int
    recorded_by: str
    loaded: bool
    create_time: _timestamp_pb2.Timestamp
    etag: str
    conversion: ConversionReport
    damaged: bool
    trained_format: _dataset_service_pb2.DatasetFormat
    activations: _common_pb2.ModelFormat
    nf4_block: int
    double_quant: bool
    scaler_block: int
    def __init__(self, name: _Optional[str] = ..., format: _Optional[_Union[_common_pb2.ModelFormat, str]] = ..., digest: _Optional[str] = ..., bytes: _Optional[int] = ..., architecture: _Optional[_Union[ModelArchitecture, _Mapping[str, object]]] = ..., parameters: _Optional[int] = ..., base_model: _Optional[str] = ..., base_digest: _Optional[str] = ..., origin: _Optional[_Union[ModelOrigin, str]] = ..., source: _Optional[str] = ..., determinism: _Optional[_Union[_common_pb2.Determinism, str]] = ..., tokenizer_digest: _Optional[str] = ..., has_chat_template: _Optional[bool] = ..., act_outliers: _Optional[int] = ..., head_format: _Optional[_Union[_common_pb2.ModelFormat, str]] = ..., record_rows: _Optional[int] = ..., recorded_by: _Optional[str] = ..., loaded: _Optional[bool] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping[str, object]]] = ..., etag: _Optional[str] = ..., conversion: _Optional[_Union[ConversionReport, _Mapping[str, object]]] = ..., damaged: _Optional[bool] = ..., trained_format: _Optional[_Union[_dataset_service_pb2.DatasetFormat, str]] = ..., activations: _Optional[_Union[_common_pb2.ModelFormat, str]] = ..., nf4_block: _Optional[int] = ..., double_quant: _Optional[bool] = ..., scaler_block: _Optional[int] = ...) -> None: ...

class UploadModelHeader(_message.Message):
    __slots__ = ("name", "size_bytes", "upload_id", "resume_offset")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    RESUME_OFFSET_FIELD_NUMBER: _ClassVar[int]
    name: str
    size_bytes: int
    upload_id: str
    resume_offset: int
    def __init__(self, name: _Optional[str] = ..., size_bytes: _Optional[int] = ..., upload_id: _Optional[str] = ..., resume_offset: _Optional[int] = ...) -> None: ...

class UploadModelRequest(_message.Message):
    __slots__ = ("header", "file", "chunk", "finish")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    header: UploadModelHeader
    file: _common_pb2.FileEntry
    chunk: bytes
    finish: _dataset_service_pb2.UploadFinish
    def __init__(self, header: _Optional[_Union[UploadModelHeader, _Mapping[str, object]]] = ..., file: _Optional[_Union[_common_pb2.FileEntry, _Mapping[str, object]]] = ..., chunk: _Optional[bytes] = ..., finish: _Optional[_Union[_dataset_service_pb2.UploadFinish, _Mapping[str, object]]] = ...) -> None: ...

class UploadModelResponse(_message.Message):
    __slots__ = ("upload_id", "files", "expire_time")
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    files: _containers.RepeatedCompositeFieldContainer[_common_pb2.FileEntry]
    expire_time: _timestamp_pb2.Timestamp
    def __init__(self, upload_id: _Optional[str] = ..., files: _Optional[_Iterable[_Union[_common_pb2.FileEntry, _Mapping[str, object]]]] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping[str, object]]] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models", "next_page_token")
    MODELS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    next_page_token: str
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping[str, object]]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteModelRequest(_message.Message):
    __slots__ = ("name", "etag")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ETAG_FIELD_NUMBER: _ClassVar[int]
    name: str
    etag: str
    def __init__(self, name: _Optional[str] = ..., etag: _Optional[str] = ...) -> None: ...

class DeleteModelResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ImportModelRequest(_message.Message):
    __slots__ = ("upload_id", "server_path", "name", "dtype", "request_id", "base_model", "source_name", "random_init")
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    SERVER_PATH_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    BASE_MODEL_FIELD_NUMBER: _ClassVar[int]
    SOURCE_NAME_FIELD_NUMBER: _ClassVar[int]
    RANDOM_INIT_FIELD_NUMBER: _ClassVar[int]
    upload_id: str
    server_path: str
    name: str
    dtype: _common_pb2.ModelFormat
    request_id: str
    base_model: str
    source_name: str
    random_init: RandomInit
    def __init__(self, upload_id: _Optional[str] = ..., server_path: _Optional[str] = ..., name: _Optional[str] = ..., dtype: _Optional[_Union[_common_pb2.ModelFormat, str]] = ..., request_id: _Optional[str] = ..., base_model: _Optional[str] = ..., source_name: _Optional[str] = ..., random_init: _Optional[_Union[RandomInit, _Mapping[str, object]]] = ...) -> None: ...

class RandomInit(_message.Message):
    __slots__ = ("seed", "tokenizer_dataset", "special_tokens")
    SEED_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_DATASET_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    seed: int
    tokenizer_dataset: str
    special_tokens: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, seed: _Optional[int] = ..., tokenizer_dataset: _Optional[str] = ..., special_tokens: _Optional[_Iterable[str]] = ...) -> None: ...

class ModelOperationMetadata(_message.Message):
    __slots__ = ("model", "stage", "done", "total", "create_time", "kind")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    model: str
    stage: str
    done: int
    total: int
    create_time: _timestamp_pb2.Timestamp
    kind: str
    def __init__(self, model: _Optional[str] = ..., stage: _Optional[str] = ..., done: _Optional[int] = ..., total: _Optional[int] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping[str, object]]] = ..., kind: _Optional[str] = ...) -> None: ...

class ConversionTolerance(_message.Message):
    __slots__ = ("max_eval_loss_delta", "min_top1_agreement")
    MAX_EVAL_LOSS_DELTA_FIELD_NUMBER: _ClassVar[int]
    MIN_TOP1_AGREEMENT_FIELD_NUMBER: _ClassVar[int]
    max_eval_loss_delta: float
    min_top1_agreement: float
    def __init__(self, max_eval_loss_delta: _Optional[float] = ..., min_top1_agreement: _Optional[float] = ...) -> None: ...

class ConvertModelRequest(_message.Message):
    __slots__ = ("model", "checkpoint", "name", "target", "lora", "calibration_dataset", "tolerance", "head", "act_outliers", "eval_dataset", "request_id", "activations", "nf4_block", "double_quant", "scaler_block", "adapter_init")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    LORA_FIELD_NUMBER: _ClassVar[int]
    CALIBRATION_DATASET_FIELD_NUMBER: _ClassVar[int]
    TOLERANCE_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    ACT_OUTLIERS_FIELD_NUMBER: _ClassVar[int]
    EVAL_DATASET_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ACTIVATIONS_FIELD_NUMBER: _ClassVar[int]
    NF4_BLOCK_FIELD_NUMBER: _ClassVar[int]
    DOUBLE_QUANT_FIELD_NUMBER: _ClassVar[int]
    SCALER_BLOCK_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_INIT_FIELD_NUMBER: _ClassVar[int]
    model: str
    checkpoint: str
    name: str
    target: _common_pb2.ModelFormat
    lora: LoraHandling
    calibration_dataset: str
    tolerance: ConversionTolerance
    head: _common_pb2.ModelFormat
    act_outliers: int
    eval_dataset: str
    request_id: str
    activations: _common_pb2.ModelFormat
    nf4_block: int
    double_quant: bool
    scaler_block: int
    adapter_init: AdapterInit
    def __init__(self, model: _Optional[str] = ..., checkpoint: _Optional[str] = ..., name: _Optional[str] = ..., target: _Optional[_Union[_common_pb2.ModelFormat, str]] = ..., lora: _Optional[_Union[LoraHandling, str]] = ..., calibration_dataset: _Optional[str] = ..., tolerance: _Optional[_Union[ConversionTolerance, _Mapping[str, object]]] = ..., head: _Optional[_Union[_common_pb2.ModelFormat, str]] = ..., act_outliers: _Optional[int] = ..., eval_dataset: _Optional[str] = ..., request_id: _Optional[str] = ..., activations: _Optional[_Union[_common_pb2.ModelFormat, str]] = ..., nf4_block: _Optional[int] = ..., double_quant: _Optional[bool] = ..., scaler_block: _Optional[int] = ..., adapter_init: _Optional[_Union[AdapterInit, _Mapping[str, object]]] = ...) -> None: ...

class AdapterInit(_message.Message):
    __slots__ = ("method", "name", "r", "alpha", "target_modules", "use_rslora", "target_pattern", "rank_pattern", "alpha_pattern", "iterations")
    class RankPatternEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class AlphaPatternEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    METHOD_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    R_FIELD_NUMBER: _ClassVar[int]
    ALPHA_FIELD_NUMBER: _ClassVar[int]
    TARGET_MODULES_FIELD_NUMBER: _ClassVar[int]
    USE_RSLORA_FIELD_NUMBER: _ClassVar[int]
    TARGET_PATTERN_FIELD_NUMBER: _ClassVar[int]
    RANK_PATTERN_FIELD_NUMBER: _ClassVar[int]
    ALPHA_PATTERN_FIELD_NUMBER: _ClassVar[int]
    ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    method: AdapterInitMethod
    name: str
    r: int
    alpha: float
    target_modules: _containers.RepeatedScalarFieldContainer[str]
    use_rslora: bool
    target_pattern: str
    rank_pattern: _containers.ScalarMap[str, int]
    alpha_pattern: _containers.ScalarMap[str, float]
    iterations: int
    def __init__(self, method: _Optional[_Union[AdapterInitMethod, str]] = ..., name: _Optional[str] = ..., r: _Optional[int] = ..., alpha: _Optional[float] = ..., target_modules: _Optional[_Iterable[str]] = ..., use_rslora: _Optional[bool] = ..., target_pattern: _Optional[str] = ..., rank_pattern: _Optional[_Mapping[str, int]] = ..., alpha_pattern: _Optional[_Mapping[str, float]] = ..., iterations: _Optional[int] = ...) -> None: ...

class LayerError(_message.Message):
    __slots__ = ("layer", "rms_error", "relative_error", "max_abs_error")
    LAYER_FIELD_NUMBER: _ClassVar[int]
    RMS_ERROR_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_ERROR_FIELD_NUMBER: _ClassVar[int]
    MAX_ABS_ERROR_FIELD_NUMBER: _ClassVar[int]
    layer: str
    rms_error: float
    relative_error: float
    max_abs_error: float
    def __init__(self, layer: _Optional[str] = ..., rms_error: _Optional[float] = ..., relative_error: _Optional[float] = ..., max_abs_error: _Optional[float] = ...) -> None: ...

class ConversionReport(_message.Message):
    __slots__ = ("source_format", "target_format", "source_digest", "target_digest", "layers", "eval_loss_before", "eval_loss_after", "top1_agreement", "eval_tokens", "adapter")
    SOURCE_FORMAT_FIELD_NUMBER: _ClassVar[int]
    TARGET_FORMAT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    TARGET_DIGEST_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    EVAL_LOSS_BEFORE_FIELD_NUMBER: _ClassVar[int]
    EVAL_LOSS_AFTER_FIELD_NUMBER: _ClassVar[int]
    TOP1_AGREEMENT_FIELD_NUMBER: _ClassVar[int]
    EVAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    source_format: _common_pb2.ModelFormat
    target_format: _common_pb2.ModelFormat
    source_digest: str
    target_digest: str
    layers: _containers.RepeatedCompositeFieldContainer[LayerError]
    eval_loss_before: float
    eval_loss_after: float
    top1_agreement: float
    eval_tokens: int
    adapter: str
    def __init__(self, source_format: _Optional[_Union[_common_pb2.ModelFormat, str]] = ..., target_format: _Optional[_Union[_common_pb2.ModelFormat, str]] = ..., source_digest: _Optional[str] = ..., target_digest: _Optional[str] = ..., layers: _Optional[_Iterable[_Union[LayerError, _Mapping[str, object]]]] = ..., eval_loss_before: _Optional[float] = ..., eval_loss_after: _Optional[float] = ..., top1_agreement: _Optional[float] = ..., eval_tokens: _Optional[int] = ..., adapter: _Optional[str] = ...) -> None: ...

class ConvertModelResponse(_message.Message):
    __slots__ = ("model", "report", "adapter")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    model: Model
    report: ConversionReport
    adapter: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping[str, object]]] = ..., report: _Optional[_Union[ConversionReport, _Mapping[str, object]]] = ..., adapter: _Optional[_Union[Model, _Mapping[str, object]]] = ...) -> None: ...

class ExportModelRequest(_message.Message):
    __slots__ = ("model", "format", "request_id", "linear_class", "max_shard_bytes")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    LINEAR_CLASS_FIELD_NUMBER: _ClassVar[int]
    MAX_SHARD_BYTES_FIELD_NUMBER: _ClassVar[int]
    model: str
    format: ExportFormat
    request_id: str
    linear_class: HfLinearClass
    max_shard_bytes: int
    def __init__(self, model: _Optional[str] = ..., format: _Optional[_Union[ExportFormat, str]] = ..., request_id: _Optional[str] = ..., linear_class: _Optional[_Union[HfLinearClass, str]] = ..., max_shard_bytes: _Optional[int] = ...) -> None: ...

class ExportModelResponse(_message.Message):
    __slots__ = ("artifact_id", "files")
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    artifact_id: str
    files: _containers.RepeatedCompositeFieldContainer[_common_pb2.FileEntry]
    def __init__(self, artifact_id: _Optional[str] = ..., files: _Optional[_Iterable[_Union[_common_pb2.FileEntry, _Mapping[str, object]]]] = ...) -> None: ...

class DownloadArtifactRequest(_message.Message):
    __slots__ = ("artifact_id", "path")
    ARTIFACT_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    artifact_id: str
    path: str
    def __init__(self, artifact_id: _Optional[str] = ..., path: _Optional[str] = ...) -> None: ...

class DownloadArtifactResponse(_message.Message):
    __slots__ = ("file", "chunk", "finish")
    FILE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    file: _common_pb2.FileEntry
    chunk: bytes
    finish: _dataset_service_pb2.UploadFinish
    def __init__(self, file: _Optional[_Union[_common_pb2.FileEntry, _Mapping[str, object]]] = ..., chunk: _Optional[bytes] = ..., finish: _Optional[_Union[_dataset_service_pb2.UploadFinish, _Mapping[str, object]]] = ...) -> None: ...

class LoadModelRequest(_message.Message):
    __slots__ = ("name", "device", "request_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    device: _common_pb2.Device
    request_id: str
    def __init__(self, name: _Optional[str] = ..., device: _Optional[_Union[_common_pb2.Device, _Mapping[str, object]]] = ..., request_id: _Optional[str] = ...) -> None: ...

class LoadModelResponse(_message.Message):
    __slots__ = ("model", "residents")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RESIDENTS_FIELD_NUMBER: _ClassVar[int]
    model: Model
    residents: _common_pb2.Residents
    def __init__(self, model: _Optional[_Union[Model, _Mapping[str, object]]] = ..., residents: _Optional[_Union[_common_pb2.Residents, _Mapping[str, object]]] = ...) -> None: ...

class UnloadModelRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class UnloadModelResponse(_message.Message):
    __slots__ = ("model", "residents")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RESIDENTS_FIELD_NUMBER: _ClassVar[int]
    model: Model
    residents: _common_pb2.Residents
    def __init__(self, model: _Optional[_Union[Model, _Mapping[str, object]]] = ..., residents: _Optional[_Union[_common_pb2.Residents, _Mapping[str, object]]] = ...) -> None: ...

class PublishCheckpointRequest(_message.Message):
    __slots__ = ("checkpoint", "name", "request_id")
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    checkpoint: str
    name: str
    request_id: str
    def __init__(self, checkpoint: _Optional[str] = ..., name: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class PublishCheckpointResponse(_message.Message):
    __slots__ = ("model", "residents")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RESIDENTS_FIELD_NUMBER: _ClassVar[int]
    model: Model
    residents: _common_pb2.Residents
    def __init__(self, model: _Optional[_Union[Model, _Mapping[str, object]]] = ..., residents: _Optional[_Union[_common_pb2.Residents, _Mapping[str, object]]] = ...) -> None: ...

class VerifyModelRequest(_message.Message):
    __slots__ = ("name", "request_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    request_id: str
    def __init__(self, name: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class RecordDifference(_message.Message):
    __slots__ = ("row", "token_id", "recorded_digest", "computed_digest")
    ROW_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    RECORDED_DIGEST_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_DIGEST_FIELD_NUMBER: _ClassVar[int]
    row: int
    token_id: int
    recorded_digest: str
    computed_digest: str
    def __init__(self, row: _Optional[int] = ..., token_id: _Optional[int] = ..., recorded_digest: _Optional[str] = ..., computed_digest: _Optional[str] = ...) -> None: ...

class VerifyModelResponse(_message.Message):
    __slots__ = ("equal", "rows", "differing_rows", "first_difference", "recorded_by", "device", "digest")
    EQUAL_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DIFFERING_ROWS_FIELD_NUMBER: _ClassVar[int]
    FIRST_DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    RECORDED_BY_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    equal: bool
    rows: int
    differing_rows: int
    first_difference: RecordDifference
    recorded_by: str
    device: _common_pb2.DeviceKind
    digest: str
    def __init__(self, equal: _Optional[bool] = ..., rows: _Optional[int] = ..., differing_rows: _Optional[int] = ..., first_difference: _Optional[_Union[RecordDifference, _Mapping[str, object]]] = ..., recorded_by: _Optional[str] = ..., device: _Optional[_Union[_common_pb2.DeviceKind, str]] = ..., digest: _Optional[str] = ...) -> None: ...
