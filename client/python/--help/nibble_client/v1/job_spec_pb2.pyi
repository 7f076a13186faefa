import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from nibble_client.v1 import common_pb2 as _common_pb2
from nibble_client.v1 import dataset_service_pb2 as _dataset_service_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ComputeDtype(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMPUTE_DTYPE_UNSPECIFIED: _ClassVar[ComputeDtype]
    COMPUTE_DTYPE_BF16: _ClassVar[ComputeDtype]
    COMPUTE_DTYPE_F32: _ClassVar[ComputeDtype]

class WeightScale(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WEIGHT_SCALE_UNSPECIFIED: _ClassVar[WeightScale]
    WEIGHT_SCALE_ABSMEAN_TENSOR: _ClassVar[WeightScale]

class ActivationScale(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACTIVATION_SCALE_UNSPECIFIED: _ClassVar[ActivationScale]
    ACTIVATION_SCALE_PER_TOKEN: _ClassVar[ActivationScale]
    ACTIVATION_SCALE_PER_TENSOR: _ClassVar[ActivationScale]

class SteMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STE_MODE_UNSPECIFIED: _ClassVar[SteMode]
    STE_MODE_IDENTITY: _ClassVar[SteMode]
    STE_MODE_ROUND_ONLY: _ClassVar[SteMode]
    STE_MODE_CLIPPED: _ClassVar[SteMode]

class WeightInit(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WEIGHT_INIT_UNSPECIFIED: _ClassVar[WeightInit]
    WEIGHT_INIT_PRETRAINED: _ClassVar[WeightInit]
    WEIGHT_INIT_RANDOM: _ClassVar[WeightInit]

class Int8Scale(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INT8_SCALE_UNSPECIFIED: _ClassVar[Int8Scale]
    INT8_SCALE_CHANNEL: _ClassVar[Int8Scale]
    INT8_SCALE_TENSOR: _ClassVar[Int8Scale]

class Int8QtCompute(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INT8_QT_COMPUTE_UNSPECIFIED: _ClassVar[Int8QtCompute]
    INT8_QT_COMPUTE_INT8: _ClassVar[Int8QtCompute]
    INT8_QT_COMPUTE_FLOAT: _ClassVar[Int8QtCompute]

class Optimizer(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OPTIMIZER_UNSPECIFIED: _ClassVar[Optimizer]
    OPTIMIZER_ADAMW: _ClassVar[Optimizer]
    OPTIMIZER_ADAMW_8BIT: _ClassVar[Optimizer]
    OPTIMIZER_SGD: _ClassVar[Optimizer]
    OPTIMIZER_LION: _ClassVar[Optimizer]

class LrSchedule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LR_SCHEDULE_UNSPECIFIED: _ClassVar[LrSchedule]
    LR_SCHEDULE_CONSTANT: _ClassVar[LrSchedule]
    LR_SCHEDULE_LINEAR: _ClassVar[LrSchedule]
    LR_SCHEDULE_COSINE: _ClassVar[LrSchedule]
    LR_SCHEDULE_WSD: _ClassVar[LrSchedule]
COMPUTE_DTYPE_UNSPECIFIED: ComputeDtype
COMPUTE_DTYPE_BF16: ComputeDtype
COMPUTE_DTYPE_F32: ComputeDtype
WEIGHT_SCALE_UNSPECIFIED: WeightScale
WEIGHT_SCALE_ABSMEAN_TENSOR: WeightScale
ACTIVATION_SCALE_UNSPECIFIED: ActivationScale
ACTIVATION_SCALE_PER_TOKEN: ActivationScale
ACTIVATION_SCALE_PER_TENSOR: ActivationScale
STE_MODE_UNSPECIFIED: SteMode
STE_MODE_IDENTITY: SteMode
STE_MODE_ROUND_ONLY: SteMode
STE_MODE_CLIPPED: SteMode
WEIGHT_INIT_UNSPECIFIED: WeightInit
WEIGHT_INIT_PRETRAINED: WeightInit
WEIGHT_INIT_RANDOM: WeightInit
INT8_SCALE_UNSPECIFIED: Int8Scale
INT8_SCALE_CHANNEL: Int8Scale
INT8_SCALE_TENSOR: Int8Scale
INT8_QT_COMPUTE_UNSPECIFIED: Int8QtCompute
INT8_QT_COMPUTE_INT8: Int8QtCompute
INT8_QT_COMPUTE_FLOAT: Int8QtCompute
OPTIMIZER_UNSPECIFIED: Optimizer
OPTIMIZER_ADAMW: Optimizer
OPTIMIZER_ADAMW_8BIT: Optimizer
OPTIMIZER_SGD: Optimizer
OPTIMIZER_LION: Optimizer
LR_SCHEDULE_UNSPECIFIED: LrSchedule
LR_SCHEDULE_CONSTANT: LrSchedule
LR_SCHEDULE_LINEAR: LrSchedule
LR_SCHEDULE_COSINE: LrSchedule
LR_SCHEDULE_WSD: LrSchedule

class QLoraMethod(_message.Message):
    __slots__ = ("r", "alpha", "dropout", "target_modules", "use_rslora", "seed", "nf4_block", "double_quant", "compute_dtype", "merge_aware_int8", "lora_plus_ratio", "target_pattern", "rank_pattern", "alpha_pattern", "use_dora", "scaler_block", "modules_to_save")
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
    R_FIELD_NUMBER: _ClassVar[int]
    ALPHA_FIELD_NUMBER: _ClassVar[int]
    DROPOUT_FIELD_NUMBER: _ClassVar[int]
    TARGET_MODULES_FIELD_NUMBER: _ClassVar[int]
    USE_RSLORA_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    NF4_BLOCK_FIELD_NUMBER: _ClassVar[int]
    DOUBLE_QUANT_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    MERGE_AWARE_INT8_FIELD_NUMBER: _ClassVar[int]
    LORA_PLUS_RATIO_FIELD_NUMBER: _ClassVar[int]
    TARGET_PATTERN_FIELD_NUMBER: _ClassVar[int]
    RANK_PATTERN_FIELD_NUMBER: _ClassVar[int]
    ALPHA_PATTERN_FIELD_NUMBER: _ClassVar[int]
    USE_DORA_FIELD_NUMBER: _ClassVar[int]
    SCALER_BLOCK_FIELD_NUMBER: _ClassVar[int]
    MODULES_TO_SAVE_FIELD_NUMBER: _ClassVar[int]
    r: int
    alpha: float
    dropout: float
    target_modules: _containers.RepeatedScalarFieldContainer[str]
    use_rslora: bool
    seed: int
    nf4_block: int
    double_quant: bool
    compute_dtype: ComputeDtype
    merge_aware_int8: bool
    lora_plus_ratio: float
    target_pattern: str
    rank_pattern: _containers.ScalarMap[str, int]
    alpha_pattern: _containers.ScalarMap[str, float]
    use_dora: bool
    scaler_block: int
    modules_to_save: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, r: _Optional[int] = ..., alpha: _Optional[float] = ..., dropout: _Optional[float] = ..., target_modules: _Optional[_Iterable[str]] = ..., use_rslora: _Optional[bool] = ..., seed: _Optional[int] = ..., nf4_block: _Optional[int] = ..., double_quant: _Optional[bool] = ..., compute_dtype: _Optional[_Union[ComputeDtype, str]] = ..., merge_aware_int8: _Optional[bool] = ..., lora_plus_ratio: _Optional[float] = ..., target_pattern: _Optional[str] = ..., rank_pattern: _Optional[_Mapping[str, int]] = ..., alpha_pattern: _Optional[_Mapping[str, float]] = ..., use_dora: _Optional[bool] = ..., scaler_block: _Optional[int] = ..., modules_to_save: _Optional[_Iterable[str]] = ...) -> None: ...

class LambdaSchedule(_message.Message):
    __slots__ = ("to", "steps")
    FROM_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    to: float
    steps: int
    def __init__(self, to: _Optional[float] = ..., steps: _Optional[int] = ..., **kwargs: object) -> None: ...

class BitNetQatMethod(_message.Message):
    __slots__ = ("preset", "weight_scale", "act_scale", "act_bits", "ste", "scale_grad", "init", "warmup_lambda", "modules_to_not_convert", "master_dtype", "compute_dtype")
    PRESET_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_SCALE_FIELD_NUMBER: _ClassVar[int]
    ACT_SCALE_FIELD_NUMBER: _ClassVar[int]
    ACT_BITS_FIELD_NUMBER: _ClassVar[int]
    STE_FIELD_NUMBER: _ClassVar[int]
    SCALE_GRAD_FIELD_NUMBER: _ClassVar[int]
    INIT_FIELD_NUMBER: _ClassVar[int]
    WARMUP_LAMBDA_FIELD_NUMBER: _ClassVar[int]
    MODULES_TO_NOT_CONVERT_FIELD_NUMBER: _ClassVar[int]
    MASTER_DTYPE_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    preset: str
    weight_scale: WeightScale
    act_scale: ActivationScale
    act_bits: int
    ste: SteMode
    scale_grad: bool
    init: WeightInit
    warmup_lambda: LambdaSchedule
    modules_to_not_convert: _containers.RepeatedScalarFieldContainer[str]
    master_dtype: ComputeDtype
    compute_dtype: ComputeDtype
    def __init__(self, preset: _Optional[str] = ..., weight_scale: _Optional[_Union[WeightScale, str]] = ..., act_scale: _Optional[_Union[ActivationScale, str]] = ..., act_bits: _Optional[int] = ..., ste: _Optional[_Union[SteMode, str]] = ..., scale_grad: _Optional[bool] = ..., init: _Optional[_Union[WeightInit, str]] = ..., warmup_lambda: _Optional[_Union[LambdaSchedule, _Mapping[str, object]]] = ..., modules_to_not_convert: _Optional[_Iterable[str]] = ..., master_dtype: _Optional[_Union[ComputeDtype, str]] = ..., compute_dtype: _Optional[_Union[ComputeDtype, str]] = ...) -> None: ...

class Int8MixedMethod(_message.Message):
    __slots__ = ("forward", "grad_input", "grad_weight", "preset", "act_outliers", "exact_forward", "act_scale", "weight_scale", "grad_scale", "stochastic_forward", "stochastic_gradients", "target_modules", "init", "compute_dtype", "master_dtype")
    FORWARD_FIELD_NUMBER: _ClassVar[int]
    GRAD_INPUT_FIELD_NUMBER: _ClassVar[int]
    GRAD_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    PRESET_FIELD_NUMBER: _ClassVar[int]
    ACT_OUTLIERS_FIELD_NUMBER: _ClassVar[int]
    EXACT_FORWARD_FIELD_NUMBER: _ClassVar[int]
    ACT_SCALE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_SCALE_FIELD_NUMBER: _ClassVar[int]
    GRAD_SCALE_FIELD_NUMBER: _ClassVar[int]
    STOCHASTIC_FORWARD_FIELD_NUMBER: _ClassVar[int]
    STOCHASTIC_GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    TARGET_MODULES_FIELD_NUMBER: _ClassVar[int]
    INIT_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    MASTER_DTYPE_FIELD_NUMBER: _ClassVar[int]
    forward: bool
    grad_input: bool
    grad_weight: bool
    preset: str
    act_outliers: int
    exact_forward: bool
    act_scale: ActivationScale
    weight_scale: Int8Scale
    grad_scale: ActivationScale
    stochastic_forward: bool
    stochastic_gradients: bool
    target_modules: _containers.RepeatedScalarFieldContainer[str]
    init: WeightInit
    compute_dtype: ComputeDtype
    master_dtype: ComputeDtype
    def __init__(self, forward: _Optional[bool] = ..., grad_input: _Optional[bool] = ..., grad_weight: _Optional[bool] = ..., preset: _Optional[str] = ..., act_outliers: _Optional[int] = ..., exact_forward: _Optional[bool] = ..., act_scale: _Optional[_Union[ActivationScale, str]] = ..., weight_scale: _Optional[_Union[Int8Scale, str]] = ..., grad_scale: _Optional[_Union[ActivationScale, str]] = ..., stochastic_forward: _Optional[bool] = ..., stochastic_gradients: _Optional[bool] = ..., target_modules: _Optional[_Iterable[str]] = ..., init: _Optional[_Union[WeightInit, str]] = ..., compute_dtype: _Optional[_Union[ComputeDtype, str]] = ..., master_dtype: _Optional[_Union[ComputeDtype, str]] = ...) -> None: ...

class Int8QtMethod(_message.Message):
    __slots__ = ("stochastic_rounding", "scale", "act_outliers", "init", "compute_dtype", "compute")
    STOCHASTIC_ROUNDING_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    ACT_OUTLIERS_FIELD_NUMBER: _ClassVar[int]
    INIT_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_FIELD_NUMBER: _ClassVar[int]
    stochastic_rounding: bool
    scale: Int8Scale
    act_outliers: int
    init: WeightInit
    compute_dtype: ComputeDtype
    compute: Int8QtCompute
    def __init__(self, stochastic_rounding: _Optional[bool] = ..., scale: _Optional[_Union[Int8Scale, str]] = ..., act_outliers: _Optional[int] = ..., init: _Optional[_Union[WeightInit, str]] = ..., compute_dtype: _Optional[_Union[ComputeDtype, str]] = ..., compute: _Optional[_Union[Int8QtCompute, str]] = ...) -> None: ...

class AqtMethod(_message.Message):
    __slots__ = ("preset",)
    PRESET_FIELD_NUMBER: _ClassVar[int]
    preset: str
    def __init__(self, preset: _Optional[str] = ...) -> None: ...

class LoraMethod(_message.Message):
    __slots__ = ("r", "alpha", "dropout", "target_modules", "use_rslora", "seed", "compute_dtype", "lora_plus_ratio", "target_pattern", "rank_pattern", "alpha_pattern", "use_dora", "modules_to_save")
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
    R_FIELD_NUMBER: _ClassVar[int]
    ALPHA_FIELD_NUMBER: _ClassVar[int]
    DROPOUT_FIELD_NUMBER: _ClassVar[int]
    TARGET_MODULES_FIELD_NUMBER: _ClassVar[int]
    USE_RSLORA_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    LORA_PLUS_RATIO_FIELD_NUMBER: _ClassVar[int]
    TARGET_PATTERN_FIELD_NUMBER: _ClassVar[int]
    RANK_PATTERN_FIELD_NUMBER: _ClassVar[int]
    ALPHA_PATTERN_FIELD_NUMBER: _ClassVar[int]
    USE_DORA_FIELD_NUMBER: _ClassVar[int]
    MODULES_TO_SAVE_FIELD_NUMBER: _ClassVar[int]
    r: int
    alpha: float
    dropout: float
    target_modules: _containers.RepeatedScalarFieldContainer[str]
    use_rslora: bool
    seed: int
    compute_dtype: ComputeDtype
    lora_plus_ratio: float
    target_pattern: str
    rank_pattern: _containers.ScalarMap[str, int]
    alpha_pattern: _containers.ScalarMap[str, float]
    use_dora: bool
    modules_to_save: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, r: _Optional[int] = ..., alpha: _Optional[float] = ..., dropout: _Optional[float] = ..., target_modules: _Optional[_Iterable[str]] = ..., use_rslora: _Optional[bool] = ..., seed: _Optional[int] = ..., compute_dtype: _Optional[_Union[ComputeDtype, str]] = ..., lora_plus_ratio: _Optional[float] = ..., target_pattern: _Optional[str] = ..., rank_pattern: _Optional[_Mapping[str, int]] = ..., alpha_pattern: _Optional[_Mapping[str, float]] = ..., use_dora: _Optional[bool] = ..., modules_to_save: _Optional[_Iterable[str]] = ...) -> None: ...

class FullMethod(_message.Message):
    __slots__ = ("compute_dtype", "init", "param_dtype")
    COMPUTE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    INIT_FIELD_NUMBER: _ClassVar[int]
    PARAM_DTYPE_FIELD_NUMBER: _ClassVar[int]
    compute_dtype: ComputeDtype
    init: WeightInit
    param_dtype: ComputeDtype
    def __init__(self, compute_dtype: _Optional[_Union[ComputeDtype, str]] = ..., init: _Optional[_Union[WeightInit, str]] = ..., param_dtype: _Optional[_Union[ComputeDtype, str]] = ...) -> None: ...

class OptimConfig(_message.Message):
    __slots__ = ("optimizer", "lr", "beta1", "beta2", "eps", "weight_decay", "max_grad_norm", "schedule", "warmup_steps", "warmup_ratio", "min_lr_ratio")
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    LR_FIELD_NUMBER: _ClassVar[int]
    BETA1_FIELD_NUMBER: _ClassVar[int]
    BETA2_FIELD_NUMBER: _ClassVar[int]
    EPS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    MAX_GRAD_NORM_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    WARMUP_STEPS_FIELD_NUMBER: _ClassVar[int]
    WARMUP_RATIO_FIELD_NUMBER: _ClassVar[int]
    MIN_LR_RATIO_FIELD_NUMBER: _ClassVar[int]
    optimizer: Optimizer
    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    max_grad_norm: float
    schedule: LrSchedule
    warmup_steps: int
    warmup_ratio: float
    min_lr_ratio: float
    def __init__(self, optimizer: _Optional[_Union[Optimizer, str]] = ..., lr: _Optional[float] = ..., beta1: _Optional[float] = ..., beta2: _Optional[float] = ..., eps: _Optional[float] = ..., weight_decay: _Optional[float] = ..., max_grad_norm: _Optional[float] = ..., schedule: _Optional[_Union[LrSchedule, str]] = ..., warmup_steps: _Optional[int] = ..., warmup_ratio: _Optional[float] = ..., min_lr_ratio: _Optional[float] = ...) -> None: ...

class EarlyStop(_message.Message):
    __slots__ = ("metric", "patience", "min_delta")
    METRIC_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_FIELD_NUMBER: _ClassVar[int]
    MIN_DELTA_FIELD_NUMBER: _ClassVar[int]
    metric: str
    patience: int
    min_delta: float
    def __init__(self, metric: _Optional[str] = ..., patience: _Optional[int] = ..., min_delta: _Optional[float] = ...) -> None: ...

class LossWatchdog(_message.Message):
    __slots__ = ("threshold", "patience")
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_FIELD_NUMBER: _ClassVar[int]
    threshold: float
    patience: int
    def __init__(self, threshold: _Optional[float] = ..., patience: _Optional[int] = ...) -> None: ...

class RunConfig(_message.Message):
    __slots__ = ("epochs", "max_steps", "micro_batch", "grad_accum", "activation_checkpointing", "eval_every", "save_every", "keep_last", "keep_best", "early_stop", "loss_watchdog", "seed", "max_duration", "artifact_ttl", "priority", "deterministic", "allow_inexact_resume", "max_retries")
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    MAX_STEPS_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_FIELD_NUMBER: _ClassVar[int]
    GRAD_ACCUM_FIELD_NUMBER: _ClassVar[int]
    ACTIVATION_CHECKPOINTING_FIELD_NUMBER: _ClassVar[int]
    EVAL_EVERY_FIELD_NUMBER: _ClassVar[int]
    SAVE_EVERY_FIELD_NUMBER: _ClassVar[int]
    KEEP_LAST_FIELD_NUMBER: _ClassVar[int]
    KEEP_BEST_FIELD_NUMBER: _ClassVar[int]
    EARLY_STOP_FIELD_NUMBER: _ClassVar[int]
    LOSS_WATCHDOG_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MAX_DURATION_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_TTL_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DETERMINISTIC_FIELD_NUMBER: _ClassVar[int]
    ALLOW_INEXACT_RESUME_FIELD_NUMBER: _ClassVar[int]
    MAX_RETRIES_FIELD_NUMBER: _ClassVar[int]
    epochs: float
    max_steps: int
    micro_batch: int
    grad_accum: int
    activation_checkpointing: bool
    eval_every: int
    save_every: int
    keep_last: int
    keep_best: bool
    early_stop: EarlyStop
    loss_watchdog: LossWatchdog
    seed: int
    max_duration: _duration_pb2.Duration
    artifact_ttl: _duration_pb2.Duration
    priority: int
    deterministic: bool
    allow_inexact_resume: bool
    max_retries: int
    def __init__(self, epochs: _Optional[float] = ..., max_steps: _Optional[int] = ..., micro_batch: _Optional[int] = ..., grad_accum: _Optional[int] = ..., activation_checkpointing: _Optional[bool] = ..., eval_every: _Optional[int] = ..., save_every: _Optional[int] = ..., keep_last: _Optional[int] = ..., keep_best: _Optional[bool] = ..., early_stop: _Optional[_Union[EarlyStop, _Mapping[str, object]]] = ..., loss_watchdog: _Optional[_Union[LossWatchdog, _Mapping[str, object]]] = ..., seed: _Optional[int] = ..., max_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping[str, object]]] = ..., artifact_ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping[str, object]]] = ..., priority: _Optional[int] = ..., deterministic: _Optional[bool] = ..., allow_inexact_resume: _Optional[bool] = ..., max_retries: _Optional[int] = ...) -> None: ...

class PublishPolicy(_message.Message):
    __slots__ = ("output_model", "evaluate_int8", "load")
    OUTPUT_MODEL_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_INT8_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    output_model: str
    evaluate_int8: bool
    load: bool
    def __init__(self, output_model: _Optional[str] = ..., evaluate_int8: _Optional[bool] = ..., load: _Optional[bool] = ...) -> None: ...

class RuntimeRecord(_message.Message):
    __slots__ = ("binary", "isa", "threads")
    BINARY_FIELD_NUMBER: _ClassVar[int]
    ISA_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    binary: str
    isa: str
    threads: int
    def __init__(self, binary: _Optional[str] = ..., isa: _Optional[str] = ..., threads: _Optional[int] = ...) -> None: ...

class JobSpec(_message.Message):
    __slots__ = ("display_name", "base_model", "qlora", "bitnet_qat", "int8_mixed", "int8_qt", "aqt", "lora", "full", "device", "train_dataset", "eval_dataset", "eval_fraction", "data", "optim", "run", "publish", "labels", "resume_from", "warm_start_from", "runtime")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    BASE_MODEL_FIELD_NUMBER: _ClassVar[int]
    QLORA_FIELD_NUMBER: _ClassVar[int]
    BITNET_QAT_FIELD_NUMBER: _ClassVar[int]
    INT8_MIXED_FIELD_NUMBER: _ClassVar[int]
    INT8_QT_FIELD_NUMBER: _ClassVar[int]
    AQT_FIELD_NUMBER: _ClassVar[int]
    LORA_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    TRAIN_DATASET_FIELD_NUMBER: _ClassVar[int]
    EVAL_DATASET_FIELD_NUMBER: _ClassVar[int]
    EVAL_FRACTION_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    OPTIM_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    RESUME_FROM_FIELD_NUMBER: _ClassVar[int]
    WARM_START_FROM_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    display_name: str
    base_model: str
    qlora: QLoraMethod
    bitnet_qat: BitNetQatMethod
    int8_mixed: Int8MixedMethod
    int8_qt: Int8QtMethod
    aqt: AqtMethod
    lora: LoraMethod
    full: FullMethod
    device: _common_pb2.Device
    train_dataset: str
    eval_dataset: str
    eval_fraction: float
    data: _dataset_service_pb2.DataConfig
    optim: OptimConfig
    run: RunConfig
    publish: PublishPolicy
    labels: _containers.ScalarMap[str, str]
    resume_from: str
    warm_start_from: str
    runtime: RuntimeRecord
    def __init__(self, display_name: _Optional[str] = ..., base_model: _Optional[str] = ..., qlora: _Optional[_Union[QLoraMethod, _Mapping[str, object]]] = ..., bitnet_qat: _Optional[_Union[BitNetQatMethod, _Mapping[str, object]]] = ..., int8_mixed: _Optional[_Union[Int8MixedMethod, _Mapping[str, object]]] = ..., int8_qt: _Optional[_Union[Int8QtMethod, _Mapping[str, object]]] = ..., aqt: _Optional[_Union[AqtMethod, _Mapping[str, object]]] = ..., lora: _Optional[_Union[LoraMethod, _Mapping[str, object]]] = ..., full: _Optional[_Union[FullMethod, _Mapping[str, object]]] = ..., device: _Optional[_Union[_common_pb2.Device, _Mapping[str, object]]] = ..., train_dataset: _Optional[str] = ..., eval_dataset: _Optional[str] = ..., eval_fraction: _Optional[float] = ..., data: _Optional[_Union[_dataset_service_pb2.DataConfig, _Mapping[str, object]]] = ..., optim: _Optional[_Union[OptimConfig, _Mapping[str, object]]] = ..., run: _Optional[_Union[RunConfig, _Mapping[str, object]]] = ..., publish: _Optional[_Union[PublishPolicy, _Mapping[str, object]]] = ..., labels: _Optional[_Mapping[str, str]] = ..., resume_from: _Optional[str] = ..., warm_start_from: _Optional[str] = ..., runtime: _Optional[_Union[RuntimeRecord, _Mapping[str, object]]] = ...) -> None: ...
