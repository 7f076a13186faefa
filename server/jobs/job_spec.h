// The spec of a fine-tuning job, shared by the server and the trainer. The initializers here are the defaults.
// std::optional marks fields that may be unset. Resolve() fills them in, except eval_fraction, add_special_tokens,
// warmup_lambda, nf4_block, scaler_block and the alternative of a field that is set (max_steps or epochs, warmup_steps
// or warmup_ratio). A new field also gets a line in job_spec_fields.h.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/json.h"

namespace nibble::jobs {

inline constexpr char kMethodQLora[] = "qlora";
inline constexpr char kMethodBitNetQat[] = "bitnet_qat";
inline constexpr char kMethodFull[] = "full";
inline constexpr char kMethodInt8Mixed[] = "int8_mixed";
inline constexpr char kMethodInt8Qt[] = "int8_qt";
inline constexpr char kMethodLora[] = "lora";

struct DataConfig {
  std::optional<std::string> format;  // text | prompt_completion | chat; default: the dataset's own
  std::int64_t max_seq_len = 512;
  std::string packing = "segmented";  // none | segmented (rows share a sequence, attention does not cross them)
  std::optional<std::string>
      overlong;                  // split (text only) | truncate | drop | error; default: split text, truncate others
  bool train_on_prompt = false;  // false: loss on completions only; text has no prompt
  std::int64_t shuffle_seed = 0;
  std::optional<bool> add_special_tokens;  // whether to add the special tokens of the tokenizer; default: not for chat
};

// Adapters on a frozen base.
struct LoraMethod {
  std::int64_t r = 16;
  double alpha = 32.0;
  double dropout = 0.0;
  std::vector<std::string> target_modules = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                             "gate_proj", "up_proj", "down_proj"};
  bool use_rslora = false;             // scale alpha / sqrt(r) instead of alpha / r
  std::string compute_dtype = "bf16";  // bf16 | fp32
  std::int64_t seed = 0;               // for the adapters' initial values
  double lora_plus_ratio = 1.0;        // learning rate of B / learning rate of A
  // Module paths, as PEFT matches them (model/module_pattern.h).
  std::string target_pattern = "";                        // instead of target_modules; "": none
  std::map<std::string, std::int64_t> rank_pattern = {};  // r of the modules that match
  std::map<std::string, double> alpha_pattern = {};       // alpha of the modules that match
  bool use_dora = false;                                  // a trained magnitude for each output
  std::vector<std::string> modules_to_save = {};          // ends of paths of modules that are trained as copies
};

struct QLoraMethod : LoraMethod {
  bool double_quant = true;       // the scales of the base are int8 codes; else they are f32
  bool merge_aware_int8 = false;  // trains in the arithmetic of the merged int8 model
  // Of a base that the job quantizes; a base in nf4 keeps its own. Unset: 64 and 256.
  std::optional<std::int64_t> nf4_block = std::nullopt;     // weights per scale
  std::optional<std::int64_t> scaler_block = std::nullopt;  // scales per factor, with double_quant
};

// Ramp of the quantized share of weights and activations over the optimizer steps.
struct LambdaSchedule {
  double from = 0.0;       // share in the first step
  double to = 1.0;         // share from step `steps` on
  std::int64_t steps = 0;  // 0: no ramp
};

struct BitNetQatMethod {
  std::string preset = "native";        // native | bitnet-tips | bitnet-2b4t | hf
  std::string act_scale = "per_token";  // per_token | per_tensor
  std::int64_t act_bits = 8;            // 4 | 8 | 16
  std::string ste = "identity";         // identity | round_only | clipped
  bool scale_grad = false;
  std::string init = "pretrained";                                // pretrained | random (drawn by run.seed)
  std::string compute_dtype = "bf16";                             // bf16 | fp32, of the backward products
  std::string master_dtype = "fp32";                              // bf16 (rounded stochastically) | fp32
  std::optional<LambdaSchedule> warmup_lambda = std::nullopt;     // unset: quantized from the first step
  std::vector<std::string> modules_to_not_convert = {"lm_head"};  // last names; the head always stays float

  bool has_ramp() const { return warmup_lambda.has_value() && warmup_lambda->steps > 0; }
};

struct FullMethod {
  std::string init = "pretrained";     // pretrained | random (drawn by run.seed)
  std::string compute_dtype = "bf16";  // bf16 | fp32
  std::string param_dtype = "fp32";    // bf16 (rounded stochastically) | fp32
};

struct Int8MixedMethod {
  std::string preset = "all";  // all | a8w8-qat | switchback | torchao: gives unset fields their values
  std::optional<bool> forward = std::nullopt;
  std::optional<bool> grad_input = std::nullopt;
  std::optional<bool> grad_weight = std::nullopt;
  std::optional<bool> exact_forward = std::nullopt;         // same forward pass as the served int8 model
  std::optional<std::int64_t> act_outliers = std::nullopt;  // 0 to 16 per activation row; forward only
  std::string act_scale = "per_token";                      // per_token | per_tensor, of the forward product
  std::optional<std::string> weight_scale = std::nullopt;   // channel | tensor
  std::string grad_scale = "per_token";                     // per_token | per_tensor
  bool stochastic_forward = false;
  bool stochastic_gradients = false;
  std::vector<std::string> target_modules = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                             "gate_proj", "up_proj", "down_proj"};
  std::string init = "pretrained";     // pretrained | random (drawn by run.seed)
  std::string compute_dtype = "bf16";  // bf16 | fp32, of the products that stay float
  std::string master_dtype = "fp32";   // bf16 (rounded stochastically) | fp32
};

struct Int8QtMethod {
  bool stochastic_rounding = true;     // of updated weights; else to nearest
  std::string scale = "channel";       // channel | tensor
  std::int64_t act_outliers = 0;       // 0 to 16 per activation row
  std::string init = "pretrained";     // pretrained | random (drawn by run.seed)
  std::string compute_dtype = "bf16";  // bf16 | fp32, of the backward products and of the linears' gradients
  std::string compute = "int8";        // int8 | float (bf16), of the rows that linears read
};

struct OptimConfig {
  std::string optimizer = "adamw";  // adamw | adamw_8bit | sgd (momentum beta1) | lion
  double lr = 2e-4;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  double max_grad_norm = 1.0;                // 0: no clipping
  std::string schedule = "cosine";           // constant | linear | cosine | wsd
  std::optional<std::int64_t> warmup_steps;  // at most one of these two; default: ratio 0.03
  std::optional<double> warmup_ratio;
  double min_lr_ratio = 0.0;  // the schedule ends at lr * this
};

struct RunConfig {
  std::optional<std::int64_t> max_steps;  // optimizer steps; at most one of these two; default: 1 epoch
  std::optional<double> epochs;
  std::int64_t micro_batch = 4;
  std::int64_t grad_accum = 1;
  bool activation_checkpointing = false;
  std::int64_t eval_every = 0;       // optimizer steps; 0: before and after training only (with an evaluation set)
  std::int64_t save_every = 50;      // optimizer steps; 0: no regular checkpoints, a lost attempt starts over
  std::int64_t keep_last = 2;        // number of good checkpoints to keep
  std::int64_t seed = 0;             // for dropout, random weights and stochastic rounding
  std::int64_t priority = 0;         // higher first
  bool allow_inexact_resume = true;  // with another binary, instruction set or thread count (docs/adr/0006)
};

struct JobSpec {
  std::string display_name;
  std::string method = kMethodQLora;  // a name of jobs::Methods()
  std::string base_model;
  std::string train_dataset;
  std::string eval_dataset;             // at most one of these two; "": none
  std::optional<double> eval_fraction;  // share of the training rows that only evaluations read (data/held_out.h)
  std::string output_model;             // "": named after the job
  std::string device = "auto";          // auto | cpu | cuda:N
  DataConfig data;
  QLoraMethod qlora;           // for method qlora
  BitNetQatMethod bitnet_qat;  // for method bitnet_qat
  FullMethod full;             // for method full
  Int8MixedMethod int8_mixed;  // for method int8_mixed
  Int8QtMethod int8_qt;        // for method int8_qt
  LoraMethod lora;             // for method lora
  OptimConfig optim;
  RunConfig run;
  std::map<std::string, std::string> labels;  // at most 16
  // At most one of these two.
  std::string resume_from;      // "JOB/STEP": continue that checkpoint of another job; "": none
  std::string warm_start_from;  // "JOB/STEP" or an adapter's model: take only its weights; "": none
};

base::Json ToJson(const JobSpec& spec);
// SHA-256, lower-case hex, of the method and the fields of ToJson(spec) that differ from their defaults. A field that a
// later version adds does not change the digest of a spec that does not set it, so checkpoints from before an upgrade
// still belong to the job. Therefore a released default never changes (job_spec_test pins them).
std::string Digest(const JobSpec& spec);
// Absent keys keep their defaults. InvalidArgument (FIELD_VIOLATION) names an unknown key or a wrong type by its path
// ("optim.lr").
absl::StatusOr<JobSpec> ParseJobSpec(const base::Json& json);

// Whether the job has evaluation data.
bool HasEvaluation(const JobSpec& spec);

// The checkpoint of another job, "JOB/STEP", that the job resumes or takes its weights from; "": none.
std::string StartCheckpoint(const JobSpec& spec);
// The adapter's model that the job takes its weights from; "": none.
std::string StartModel(const JobSpec& spec);

struct FieldViolation {
  std::string field;  // "qlora.r"
  std::string message;
};
// Everything that is wrong with the spec itself; models and data are not checked.
std::vector<FieldViolation> FindViolations(const JobSpec& spec);
// Unimplemented if the method, or a value of one of its fields, is not implemented; InvalidArgument (FIELD_VIOLATION)
// with metadata "field" (the first bad field) and one entry per bad field; otherwise Ok.
absl::Status Validate(const JobSpec& spec);

// Checks the fields that depend on the number of optimizer steps. Validate includes these checks if run.max_steps is
// set; a run in epochs has a number of steps once its rows are known. Error: InvalidArgument as above.
absl::Status CheckSteps(const JobSpec& spec, std::int64_t steps);

// Fills in unset fields. `dataset_format` is the training set's own; `default_device` replaces "auto".
JobSpec Resolve(JobSpec spec, const std::string& job_id, const std::string& dataset_format,
                const std::string& default_device);

// For the provenance of the job's model: the format of the rows that it was trained on, and the options by which they
// and the evaluation set were tokenized, so that a conversion can evaluate the same tokens.
base::Json EvalDataJson(const JobSpec& spec);

// Optimizer steps of the run: max_steps, or the steps of its epochs (rounded up, at least one).
std::int64_t NumSteps(const RunConfig& run, std::int64_t rows_in_epoch);
// Micro-batches of a run given in epochs (rounded up, at least one); its last step may have fewer than run.grad_accum.
// Nothing for a run given in steps, because all its steps are full.
std::optional<std::int64_t> NumMicroBatches(const RunConfig& run, std::int64_t rows_in_epoch);

}  // namespace nibble::jobs
