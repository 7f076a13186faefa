// Converts JobSpec between the API's message and jobs::JobSpec.
#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/rpc/dataset_proto.h"
#include "server/rpc/job_proto.h"
#include "server/rpc/status.h"

namespace nibble::rpc {

namespace {

using base::FieldError;
using base::StrCat;

absl::Status TakeDtype(std::string_view field, v1::ComputeDtype in, std::string& out) {
  switch (in) {
    case v1::COMPUTE_DTYPE_UNSPECIFIED: return absl::OkStatus();
    case v1::COMPUTE_DTYPE_BF16: out = "bf16"; return absl::OkStatus();
    case v1::COMPUTE_DTYPE_F32: out = "fp32"; return absl::OkStatus();
    default: return FieldError(field, "wanted BF16 or F32");
  }
}
v1::ComputeDtype DtypeOf(const std::string& name) {
  return name == "fp32" ? v1::COMPUTE_DTYPE_F32 : v1::COMPUTE_DTYPE_BF16;
}

absl::Status TakeBitNet(const v1::BitNetQatMethod& in, jobs::BitNetQatMethod& out) {
  if (in.preset() == "hf") return Unimplemented("BitNetQatMethod.preset hf");
  // Only full quantization from the first step is implemented, which is also the default.
  const v1::LambdaSchedule& ramp = in.warmup_lambda();
  if (ramp.steps() != 0 || ramp.from() != 0.0 || (ramp.has_to() && ramp.to() != 1.0)) {
    return Unimplemented("BitNetQatMethod.warmup_lambda");
  }
  for (const std::string& module : in.modules_to_not_convert()) {
    if (module != "lm_head") return Unimplemented(StrCat("BitNetQatMethod.modules_to_not_convert ", module.substr(0, 64)));
  }
  switch (in.master_dtype()) {
    case v1::COMPUTE_DTYPE_UNSPECIFIED:
    case v1::COMPUTE_DTYPE_F32: break;
    case v1::COMPUTE_DTYPE_BF16: return Unimplemented("BitNetQatMethod.master_dtype BF16");
    default: return FieldError("bitnet_qat.master_dtype", "wanted F32");
  }
  switch (in.weight_scale()) {
    case v1::WEIGHT_SCALE_UNSPECIFIED:
    case v1::WEIGHT_SCALE_ABSMEAN_TENSOR: break;
    default: return FieldError("bitnet_qat.weight_scale", "wanted ABSMEAN_TENSOR");
  }
  if (in.has_preset()) out.preset = in.preset();
  if (in.has_act_bits()) out.act_bits = in.act_bits();
  if (in.has_scale_grad()) out.scale_grad = in.scale_grad();
  switch (in.act_scale()) {
    case v1::ACTIVATION_SCALE_UNSPECIFIED: break;
    case v1::ACTIVATION_SCALE_PER_TOKEN: out.act_scale = "per_token"; break;
    case v1::ACTIVATION_SCALE_PER_TENSOR: out.act_scale = "per_tensor"; break;
    default: return FieldError("bitnet_qat.act_scale", "wanted PER_TOKEN or PER_TENSOR");
  }
  switch (in.ste()) {
    case v1::STE_MODE_UNSPECIFIED: break;
    case v1::STE_MODE_IDENTITY: out.ste = "identity"; break;
    case v1::STE_MODE_ROUND_ONLY: out.ste = "round_only"; break;
    case v1::STE_MODE_CLIPPED: out.ste = "clipped"; break;
    default: return FieldError("bitnet_qat.ste", "wanted IDENTITY, ROUND_ONLY or CLIPPED");
  }
  switch (in.init()) {
    case v1::WEIGHT_INIT_UNSPECIFIED: break;
    case v1::WEIGHT_INIT_PRETRAINED: out.init = "pretrained"; break;
    case v1::WEIGHT_INIT_RANDOM: out.init = "random"; break;
    default: return FieldError("bitnet_qat.init", "wanted PRETRAINED or RANDOM");
  }
  return TakeDtype("bitnet_qat.compute_dtype", in.compute_dtype(), out.compute_dtype);
}

void PutBitNet(const jobs::BitNetQatMethod& in, v1::BitNetQatMethod& out) {
  out.set_preset(in.preset);
  out.set_weight_scale(v1::WEIGHT_SCALE_ABSMEAN_TENSOR);
  out.set_act_scale(in.act_scale == "per_tensor" ? v1::ACTIVATION_SCALE_PER_TENSOR : v1::ACTIVATION_SCALE_PER_TOKEN);
  out.set_act_bits(static_cast<std::int32_t>(in.act_bits));
  out.set_ste(in.ste == "round_only" ? v1::STE_MODE_ROUND_ONLY
              : in.ste == "clipped"  ? v1::STE_MODE_CLIPPED
                                     : v1::STE_MODE_IDENTITY);
  out.set_scale_grad(in.scale_grad);
  out.set_init(in.init == "random" ? v1::WEIGHT_INIT_RANDOM : v1::WEIGHT_INIT_PRETRAINED);
  out.add_modules_to_not_convert("lm_head");
  out.set_master_dtype(v1::COMPUTE_DTYPE_F32);
  out.set_compute_dtype(DtypeOf(in.compute_dtype));
}

absl::Status TakeQLora(const v1::QLoraMethod& in, jobs::QLoraMethod& out) {
  if (in.has_nf4_block() && in.nf4_block() != 64) return Unimplemented("QLoraMethod.nf4_block");
  if (in.has_double_quant() && !in.double_quant()) return Unimplemented("QLoraMethod.double_quant");
  if (in.has_merge_aware_int8() && in.merge_aware_int8()) return Unimplemented("QLoraMethod.merge_aware_int8");
  if (in.has_r()) out.r = in.r();
  if (in.has_alpha()) out.alpha = in.alpha();
  if (in.has_dropout()) out.dropout = in.dropout();
  if (in.target_modules_size() > 0) out.target_modules.assign(in.target_modules().begin(), in.target_modules().end());
  if (in.has_use_rslora()) out.use_rslora = in.use_rslora();
  if (in.has_seed()) out.seed = in.seed();
  return TakeDtype("qlora.compute_dtype", in.compute_dtype(), out.compute_dtype);
}

absl::Status TakeOptim(const v1::OptimConfig& in, jobs::OptimConfig& out) {
  if (in.has_optimizer() && in.optimizer() != v1::OPTIMIZER_UNSPECIFIED && in.optimizer() != v1::OPTIMIZER_ADAMW) {
    return Unimplemented("OptimConfig.optimizer");
  }
  if (in.has_lr()) out.lr = in.lr();
  if (in.has_beta1()) out.beta1 = in.beta1();
  if (in.has_beta2()) out.beta2 = in.beta2();
  if (in.has_eps()) out.eps = in.eps();
  if (in.has_weight_decay()) out.weight_decay = in.weight_decay();
  if (in.has_max_grad_norm()) out.max_grad_norm = in.max_grad_norm();
  if (in.has_min_lr_ratio()) out.min_lr_ratio = in.min_lr_ratio();
  if (in.warmup_case() == v1::OptimConfig::kWarmupSteps) out.warmup_steps = in.warmup_steps();
  if (in.warmup_case() == v1::OptimConfig::kWarmupRatio) out.warmup_ratio = in.warmup_ratio();
  switch (in.schedule()) {
    case v1::LR_SCHEDULE_UNSPECIFIED: break;
    case v1::LR_SCHEDULE_CONSTANT: out.schedule = "constant"; break;
    case v1::LR_SCHEDULE_LINEAR: out.schedule = "linear"; break;
    case v1::LR_SCHEDULE_COSINE: out.schedule = "cosine"; break;
    default: return Unimplemented("OptimConfig.schedule");
  }
  return absl::OkStatus();
}

absl::Status TakeRun(const v1::RunConfig& in, jobs::RunConfig& out) {
  if (in.has_keep_best() && in.keep_best()) return Unimplemented("RunConfig.keep_best");
  if (in.has_early_stop()) return Unimplemented("RunConfig.early_stop");
  if (in.has_loss_watchdog()) return Unimplemented("RunConfig.loss_watchdog");
  if (in.has_max_duration()) return Unimplemented("RunConfig.max_duration");
  if (in.has_artifact_ttl()) return Unimplemented("RunConfig.artifact_ttl");
  if (in.has_max_retries()) return Unimplemented("RunConfig.max_retries");
  if (in.length_case() == v1::RunConfig::kMaxSteps) out.max_steps = in.max_steps();
  if (in.length_case() == v1::RunConfig::kEpochs) out.epochs = in.epochs();
  if (in.has_micro_batch()) out.micro_batch = in.micro_batch();
  if (in.has_grad_accum()) out.grad_accum = in.grad_accum();
  if (in.has_activation_checkpointing()) out.activation_checkpointing = in.activation_checkpointing();
  if (in.has_eval_every()) out.eval_every = in.eval_every();
  if (in.has_save_every()) out.save_every = in.save_every();
  if (in.has_keep_last()) out.keep_last = in.keep_last();
  if (in.has_seed()) out.seed = in.seed();
  if (in.has_priority()) out.priority = in.priority();
  if (in.has_allow_inexact_resume()) out.allow_inexact_resume = in.allow_inexact_resume();
  return absl::OkStatus();
}

absl::Status CheckBuilt(const v1::JobSpec& spec) {
  switch (spec.method_case()) {
    case v1::JobSpec::kQlora:
    case v1::JobSpec::kBitnetQat: break;
    case v1::JobSpec::METHOD_NOT_SET: return FieldError("method", "is not set, wanted qlora or bitnet_qat");
    case v1::JobSpec::kInt8Mixed: return Unimplemented("JobSpec.int8_mixed");
    case v1::JobSpec::kInt8Qt: return Unimplemented("JobSpec.int8_qt");
    case v1::JobSpec::kAqt: return Unimplemented("JobSpec.aqt");
    case v1::JobSpec::kLora: return Unimplemented("JobSpec.lora");
    case v1::JobSpec::kFull: return Unimplemented("JobSpec.full");
  }
  if (spec.has_eval_fraction()) return Unimplemented("JobSpec.eval_fraction");
  if (spec.has_resume_from()) return Unimplemented("JobSpec.resume_from");
  if (spec.has_warm_start_from()) return Unimplemented("JobSpec.warm_start_from");
  if (spec.publish().has_evaluate_int8() && !spec.publish().evaluate_int8()) return Unimplemented("PublishPolicy.evaluate_int8");
  if (spec.publish().has_load() && spec.publish().load()) return Unimplemented("PublishPolicy.load");
  if (spec.has_runtime()) return FieldError("runtime", "must not be set: the server fills it");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<jobs::JobSpec> FromProto(const v1::JobSpec& spec) {
  NIBBLE_RETURN_IF_ERROR(CheckBuilt(spec));
  jobs::JobSpec out;
  out.display_name = spec.display_name();
  out.method = spec.has_bitnet_qat() ? jobs::kMethodBitNetQat : jobs::kMethodQLora;
  out.base_model = spec.base_model();
  out.train_dataset = spec.train_dataset();
  out.eval_dataset = spec.eval_dataset();
  out.output_model = spec.publish().output_model();
  switch (spec.device().kind()) {
    case v1::DEVICE_KIND_UNSPECIFIED:
    case v1::DEVICE_KIND_AUTO: out.device = "auto"; break;
    case v1::DEVICE_KIND_CPU: out.device = "cpu"; break;
    case v1::DEVICE_KIND_CUDA: out.device = StrCat("cuda:", spec.device().ordinal()); break;
    default: return FieldError("device.kind", "wanted AUTO, CPU or CUDA");
  }
  NIBBLE_ASSIGN_OR_RETURN(out.data, FromProto(spec.data()));
  NIBBLE_RETURN_IF_ERROR(TakeQLora(spec.qlora(), out.qlora));
  NIBBLE_RETURN_IF_ERROR(TakeBitNet(spec.bitnet_qat(), out.bitnet_qat));
  NIBBLE_RETURN_IF_ERROR(TakeOptim(spec.optim(), out.optim));
  NIBBLE_RETURN_IF_ERROR(TakeRun(spec.run(), out.run));
  // The run's seed is the default of all other seeds.
  if (!spec.data().has_shuffle_seed()) out.data.shuffle_seed = out.run.seed;
  if (!spec.qlora().has_seed()) out.qlora.seed = out.run.seed;
  for (const auto& [key, value] : spec.labels()) out.labels[key] = value;
  return out;
}

namespace {

void PutQLora(const jobs::QLoraMethod& in, v1::QLoraMethod& out) {
  out.set_r(static_cast<std::int32_t>(in.r));
  out.set_alpha(in.alpha);
  out.set_dropout(in.dropout);
  for (const std::string& module : in.target_modules) out.add_target_modules(module);
  out.set_use_rslora(in.use_rslora);
  out.set_seed(in.seed);
  out.set_nf4_block(64);
  out.set_double_quant(in.double_quant);
  out.set_compute_dtype(DtypeOf(in.compute_dtype));
}

void PutData(const jobs::DataConfig& in, v1::DataConfig& out) {
  if (const auto format = data::ParseRowFormat(in.format.value_or("")); format.ok()) out.set_format(ToProto(*format));
  out.mutable_loss_mask()->set_train_on_prompt(in.train_on_prompt);
  out.set_max_seq_len(static_cast<std::int32_t>(in.max_seq_len));
  const std::string overlong = in.overlong.value_or("");
  if (overlong == "truncate") out.set_overlong(v1::OVERLONG_POLICY_TRUNCATE);
  if (overlong == "drop") out.set_overlong(v1::OVERLONG_POLICY_DROP);
  if (overlong == "error") out.set_overlong(v1::OVERLONG_POLICY_ERROR);
  if (overlong == "split") out.set_overlong(v1::OVERLONG_POLICY_SPLIT);
  out.set_packing(in.packing == "none" ? v1::PACKING_MODE_NONE : v1::PACKING_MODE_SEGMENTED);
  out.set_shuffle_seed(in.shuffle_seed);
  out.set_shuffle(true);
  if (in.add_special_tokens.has_value()) out.set_add_special_tokens(*in.add_special_tokens);
}

void PutRun(const jobs::RunConfig& in, v1::RunConfig& out) {
  if (in.max_steps.has_value()) out.set_max_steps(*in.max_steps);
  if (in.epochs.has_value()) out.set_epochs(*in.epochs);
  out.set_micro_batch(static_cast<std::int32_t>(in.micro_batch));
  out.set_grad_accum(static_cast<std::int32_t>(in.grad_accum));
  out.set_activation_checkpointing(in.activation_checkpointing);
  out.set_eval_every(in.eval_every);
  out.set_save_every(in.save_every);
  out.set_keep_last(static_cast<std::int32_t>(in.keep_last));
  out.set_seed(in.seed);
  out.set_priority(static_cast<std::int32_t>(in.priority));
  out.set_deterministic(true);
  out.set_allow_inexact_resume(in.allow_inexact_resume);
}

}  // namespace

v1::JobSpec ToProto(const jobs::JobSpec& spec) {
  v1::JobSpec out;
  out.set_display_name(spec.display_name);
  out.set_base_model(spec.base_model);
  if (spec.method == jobs::kMethodBitNetQat) {
    PutBitNet(spec.bitnet_qat, *out.mutable_bitnet_qat());
  } else {
    PutQLora(spec.qlora, *out.mutable_qlora());
  }
  if (spec.device.rfind("cuda:", 0) == 0) {
    out.mutable_device()->set_kind(v1::DEVICE_KIND_CUDA);
    out.mutable_device()->set_ordinal(std::atoi(spec.device.c_str() + 5));
  } else {
    out.mutable_device()->set_kind(spec.device == "auto" ? v1::DEVICE_KIND_AUTO : v1::DEVICE_KIND_CPU);
  }
  out.set_train_dataset(spec.train_dataset);
  if (!spec.eval_dataset.empty()) out.set_eval_dataset(spec.eval_dataset);
  PutData(spec.data, *out.mutable_data());
  auto* optim = out.mutable_optim();
  optim->set_optimizer(v1::OPTIMIZER_ADAMW);
  optim->set_lr(spec.optim.lr);
  optim->set_beta1(spec.optim.beta1);
  optim->set_beta2(spec.optim.beta2);
  optim->set_eps(spec.optim.eps);
  optim->set_weight_decay(spec.optim.weight_decay);
  optim->set_max_grad_norm(spec.optim.max_grad_norm);
  optim->set_schedule(spec.optim.schedule == "constant" ? v1::LR_SCHEDULE_CONSTANT
                      : spec.optim.schedule == "linear" ? v1::LR_SCHEDULE_LINEAR
                                                        : v1::LR_SCHEDULE_COSINE);
  if (spec.optim.warmup_steps.has_value()) optim->set_warmup_steps(*spec.optim.warmup_steps);
  if (spec.optim.warmup_ratio.has_value()) optim->set_warmup_ratio(*spec.optim.warmup_ratio);
  optim->set_min_lr_ratio(spec.optim.min_lr_ratio);
  PutRun(spec.run, *out.mutable_run());
  out.mutable_publish()->set_output_model(spec.output_model);
  out.mutable_publish()->set_evaluate_int8(true);
  for (const auto& [key, value] : spec.labels) (*out.mutable_labels())[key] = value;
  return out;
}

}  // namespace nibble::rpc
