// Every field of a job spec, listed once for each struct of job_spec.h. The JSON form, the digest, the checks of single
// fields and the API's message (rpc/job_spec_proto.cc) are made from these lists.
#pragma once
#include <cstdint>
#include <limits>
#include <span>
#include <tuple>

#include "server/jobs/job_spec.h"

namespace nibble::jobs {

// One field of the struct `Spec`.
template <typename Spec, typename Value>
class SpecField {
 public:
  constexpr SpecField(const char* name, Value Spec::* member) : name(name), api_path(name), member(member) {}

  // The values that a text may have.
  constexpr SpecField OneOf(std::span<const char* const> values) const {
    SpecField field = *this;
    field.choices = values;
    return field;
  }
  // The least and the largest value of an integer.
  constexpr SpecField Between(std::int64_t least,
                              std::int64_t largest = std::numeric_limits<std::int64_t>::max()) const {
    SpecField field = *this;
    field.least = least;
    field.largest = largest;
    return field;
  }
  // The path in the API's message, if it is not the name. "": the API's form of this field is converted by hand.
  constexpr SpecField InApi(const char* path) const {
    SpecField field = *this;
    field.api_path = path;
    return field;
  }
  // A seed that the API leaves equal to run.seed unless it is set.
  constexpr SpecField DefaultsToRunSeed() const {
    SpecField field = *this;
    field.defaults_to_run_seed = true;
    return field;
  }
  // The configuration of the method that has the field's name. Only a spec with that method has the field.
  constexpr SpecField OfMethod() const {
    SpecField field = *this;
    field.is_method = true;
    return field;
  }

  const char* name;  // in JSON and in the paths of errors
  const char* api_path;
  Value Spec::* member;
  std::span<const char* const> choices = {};  // empty: every text
  std::int64_t least = std::numeric_limits<std::int64_t>::min();
  std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  bool is_method = false;
  bool defaults_to_run_seed = false;
};

inline constexpr std::int64_t kMaxSeqLen = 1 << 20;
inline constexpr std::int64_t kMaxSteps = 100'000'000;
inline constexpr std::int64_t kMaxBatch = 65'536;

inline constexpr const char* kFormats[] = {"text", "prompt_completion", "chat"};
inline constexpr const char* kPackings[] = {"none", "segmented"};
inline constexpr const char* kOverlong[] = {"split", "truncate", "drop", "error"};
inline constexpr const char* kComputeDtypes[] = {"bf16", "fp32"};
inline constexpr const char* kBitNetPresets[] = {"native", "bitnet-tips", "bitnet-2b4t", "hf"};
inline constexpr const char* kActScales[] = {"per_token", "per_tensor"};
inline constexpr const char* kStes[] = {"identity", "round_only", "clipped"};
inline constexpr const char* kInits[] = {"pretrained", "random"};
inline constexpr const char* kInt8MixedPresets[] = {"all", "a8w8-qat", "switchback", "torchao"};
inline constexpr const char* kWeightScales[] = {"channel", "tensor"};
inline constexpr const char* kInt8QtComputes[] = {"int8", "float"};
inline constexpr const char* kSchedules[] = {"constant", "linear", "cosine", "wsd"};
inline constexpr const char* kOptimizers[] = {"adamw", "adamw_8bit", "sgd", "lion"};

// SpecFields<Spec>::kFields: a tuple of SpecField, in the order of the JSON form.
template <typename Spec>
struct SpecFields {};

template <>
struct SpecFields<DataConfig> {
  static constexpr auto kFields =
      std::tuple(SpecField("format", &DataConfig::format).OneOf(kFormats),
                 SpecField("max_seq_len", &DataConfig::max_seq_len).Between(2, kMaxSeqLen),
                 SpecField("packing", &DataConfig::packing).OneOf(kPackings),
                 SpecField("overlong", &DataConfig::overlong).OneOf(kOverlong),
                 SpecField("train_on_prompt", &DataConfig::train_on_prompt).InApi("loss_mask.train_on_prompt"),
                 SpecField("shuffle_seed", &DataConfig::shuffle_seed).Between(0).DefaultsToRunSeed(),
                 SpecField("add_special_tokens", &DataConfig::add_special_tokens));
};

template <>
struct SpecFields<LoraMethod> {
  static constexpr auto kFields = std::tuple(
      SpecField("r", &LoraMethod::r).Between(1, 4096), SpecField("alpha", &LoraMethod::alpha),
      SpecField("dropout", &LoraMethod::dropout), SpecField("target_modules", &LoraMethod::target_modules),
      SpecField("use_rslora", &LoraMethod::use_rslora),
      SpecField("compute_dtype", &LoraMethod::compute_dtype).OneOf(kComputeDtypes),
      SpecField("seed", &LoraMethod::seed).Between(0).DefaultsToRunSeed(),
      SpecField("lora_plus_ratio", &LoraMethod::lora_plus_ratio),
      SpecField("target_pattern", &LoraMethod::target_pattern), SpecField("rank_pattern", &LoraMethod::rank_pattern),
      SpecField("alpha_pattern", &LoraMethod::alpha_pattern), SpecField("use_dora", &LoraMethod::use_dora),
      SpecField("modules_to_save", &LoraMethod::modules_to_save));
};

template <>
struct SpecFields<QLoraMethod> {
  static constexpr auto kFields = std::tuple_cat(
      SpecFields<LoraMethod>::kFields, std::tuple(SpecField("double_quant", &QLoraMethod::double_quant),
                                                  SpecField("merge_aware_int8", &QLoraMethod::merge_aware_int8),
                                                  SpecField("nf4_block", &QLoraMethod::nf4_block),
                                                  SpecField("scaler_block", &QLoraMethod::scaler_block)));
};

template <>
struct SpecFields<LambdaSchedule> {
  static constexpr auto kFields =
      std::tuple(SpecField("from", &LambdaSchedule::from), SpecField("to", &LambdaSchedule::to),
                 SpecField("steps", &LambdaSchedule::steps).Between(0, kMaxSteps));
};

template <>
struct SpecFields<BitNetQatMethod> {
  static constexpr auto kFields = std::tuple(
      SpecField("preset", &BitNetQatMethod::preset).OneOf(kBitNetPresets),
      SpecField("act_scale", &BitNetQatMethod::act_scale).OneOf(kActScales),
      SpecField("act_bits", &BitNetQatMethod::act_bits), SpecField("ste", &BitNetQatMethod::ste).OneOf(kStes),
      SpecField("scale_grad", &BitNetQatMethod::scale_grad), SpecField("init", &BitNetQatMethod::init).OneOf(kInits),
      SpecField("compute_dtype", &BitNetQatMethod::compute_dtype).OneOf(kComputeDtypes),
      SpecField("master_dtype", &BitNetQatMethod::master_dtype).OneOf(kComputeDtypes),
      SpecField("warmup_lambda", &BitNetQatMethod::warmup_lambda),
      SpecField("modules_to_not_convert", &BitNetQatMethod::modules_to_not_convert));
};

template <>
struct SpecFields<FullMethod> {
  static constexpr auto kFields =
      std::tuple(SpecField("init", &FullMethod::init).OneOf(kInits),
                 SpecField("compute_dtype", &FullMethod::compute_dtype).OneOf(kComputeDtypes),
                 SpecField("param_dtype", &FullMethod::param_dtype).OneOf(kComputeDtypes));
};

template <>
struct SpecFields<Int8MixedMethod> {
  static constexpr auto kFields =
      std::tuple(SpecField("preset", &Int8MixedMethod::preset).OneOf(kInt8MixedPresets),
                 SpecField("forward", &Int8MixedMethod::forward), SpecField("grad_input", &Int8MixedMethod::grad_input),
                 SpecField("grad_weight", &Int8MixedMethod::grad_weight),
                 SpecField("exact_forward", &Int8MixedMethod::exact_forward),
                 SpecField("act_outliers", &Int8MixedMethod::act_outliers).Between(0, 16),
                 SpecField("act_scale", &Int8MixedMethod::act_scale).OneOf(kActScales),
                 SpecField("weight_scale", &Int8MixedMethod::weight_scale).OneOf(kWeightScales),
                 SpecField("grad_scale", &Int8MixedMethod::grad_scale).OneOf(kActScales),
                 SpecField("stochastic_forward", &Int8MixedMethod::stochastic_forward),
                 SpecField("stochastic_gradients", &Int8MixedMethod::stochastic_gradients),
                 SpecField("target_modules", &Int8MixedMethod::target_modules),
                 SpecField("init", &Int8MixedMethod::init).OneOf(kInits),
                 SpecField("compute_dtype", &Int8MixedMethod::compute_dtype).OneOf(kComputeDtypes),
                 SpecField("master_dtype", &Int8MixedMethod::master_dtype).OneOf(kComputeDtypes));
};

template <>
struct SpecFields<Int8QtMethod> {
  static constexpr auto kFields =
      std::tuple(SpecField("stochastic_rounding", &Int8QtMethod::stochastic_rounding),
                 SpecField("scale", &Int8QtMethod::scale).OneOf(kWeightScales),
                 SpecField("act_outliers", &Int8QtMethod::act_outliers).Between(0, 16),
                 SpecField("init", &Int8QtMethod::init).OneOf(kInits),
                 SpecField("compute_dtype", &Int8QtMethod::compute_dtype).OneOf(kComputeDtypes),
                 SpecField("compute", &Int8QtMethod::compute).OneOf(kInt8QtComputes));
};

template <>
struct SpecFields<OptimConfig> {
  static constexpr auto kFields = std::tuple(
      SpecField("optimizer", &OptimConfig::optimizer).OneOf(kOptimizers), SpecField("lr", &OptimConfig::lr),
      SpecField("beta1", &OptimConfig::beta1), SpecField("beta2", &OptimConfig::beta2),
      SpecField("eps", &OptimConfig::eps), SpecField("weight_decay", &OptimConfig::weight_decay),
      SpecField("max_grad_norm", &OptimConfig::max_grad_norm),
      SpecField("schedule", &OptimConfig::schedule).OneOf(kSchedules),
      SpecField("warmup_steps", &OptimConfig::warmup_steps).Between(0, kMaxSteps),
      SpecField("warmup_ratio", &OptimConfig::warmup_ratio), SpecField("min_lr_ratio", &OptimConfig::min_lr_ratio));
};

template <>
struct SpecFields<RunConfig> {
  static constexpr auto kFields = std::tuple(
      SpecField("max_steps", &RunConfig::max_steps).Between(1, kMaxSteps), SpecField("epochs", &RunConfig::epochs),
      SpecField("micro_batch", &RunConfig::micro_batch).Between(1, kMaxBatch),
      SpecField("grad_accum", &RunConfig::grad_accum).Between(1, kMaxBatch),
      SpecField("activation_checkpointing", &RunConfig::activation_checkpointing),
      SpecField("eval_every", &RunConfig::eval_every).Between(0, kMaxSteps),
      SpecField("save_every", &RunConfig::save_every).Between(0, kMaxSteps),
      SpecField("keep_last", &RunConfig::keep_last).Between(1, 1000), SpecField("seed", &RunConfig::seed).Between(0),
      SpecField("priority", &RunConfig::priority).Between(-1000, 1000),
      SpecField("allow_inexact_resume", &RunConfig::allow_inexact_resume));
};

template <>
struct SpecFields<JobSpec> {
  static constexpr auto kFields = std::tuple(
      SpecField("display_name", &JobSpec::display_name), SpecField("method", &JobSpec::method).InApi(""),
      SpecField("base_model", &JobSpec::base_model), SpecField("train_dataset", &JobSpec::train_dataset),
      SpecField("eval_dataset", &JobSpec::eval_dataset), SpecField("eval_fraction", &JobSpec::eval_fraction),
      SpecField("output_model", &JobSpec::output_model).InApi("publish.output_model"),
      SpecField("device", &JobSpec::device).InApi(""), SpecField("data", &JobSpec::data),
      SpecField("qlora", &JobSpec::qlora).OfMethod(), SpecField("bitnet_qat", &JobSpec::bitnet_qat).OfMethod(),
      SpecField("full", &JobSpec::full).OfMethod(), SpecField("int8_mixed", &JobSpec::int8_mixed).OfMethod(),
      SpecField("int8_qt", &JobSpec::int8_qt).OfMethod(), SpecField("lora", &JobSpec::lora).OfMethod(),
      SpecField("optim", &JobSpec::optim), SpecField("run", &JobSpec::run),
      SpecField("labels", &JobSpec::labels).InApi(""), SpecField("resume_from", &JobSpec::resume_from),
      SpecField("warm_start_from", &JobSpec::warm_start_from));
};

// A struct of job_spec.h, in contrast to the values of its fields.
template <typename T>
concept IsSpec = requires { SpecFields<T>::kFields; };
// std::optional of such a struct: a part of the spec that may be unset.
template <typename T>
concept IsOptionalSpec = requires { SpecFields<typename T::value_type>::kFields; };

// Calls visit(field) for each field, in order.
template <IsSpec Spec, typename Visit>
void ForEachField(Visit&& visit) {
  std::apply([&](const auto&... field) { (visit(field), ...); }, SpecFields<Spec>::kFields);
}

}  // namespace nibble::jobs
