#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "server/base/error.h"
#include "server/base/sha256.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/jobs/job_spec.h"

namespace nibble::jobs {

using base::Json;
using base::StrCat;

namespace {

// API fields that are not implemented yet. Listed so that they are refused as unimplemented and not as typing errors.
constexpr const char* kLaterFields[] = {
    "eval_fraction", "publish", "resume_from", "warm_start_from", "data.fields", "data.chat_template", "data.roles",
    "qlora.nf4_block", "qlora.merge_aware_int8", "optim.optimizer", "run.keep_best", "run.early_stop", "run.loss_watchdog",
    "run.max_duration", "run.artifact_ttl", "run.deterministic", "bitnet_qat.warmup_lambda", "bitnet_qat.modules_to_not_convert",
    "bitnet_qat.master_dtype", "bitnet_qat.weight_scale", "int8_mixed", "int8_qt", "aqt", "lora", "full"};

// Reads one object of the document: each Get takes a key, and Finish refuses keys that were not taken. The first error
// wins.
class Reader {
 public:
  Reader(const Json& object, std::string prefix, absl::Status& status)
      : object_(object), prefix_(std::move(prefix)), status_(status) {
    if (!object.is_object()) Fail(prefix_.empty() ? "spec" : prefix_.substr(0, prefix_.size() - 1), object, "an object");
  }

  void Get(std::string_view key, std::string& out) {
    if (const Json* v = Take(key, "a string", [](const Json& j) { return j.is_string(); })) out = v->get<std::string>();
  }
  void Get(std::string_view key, bool& out) {
    if (const Json* v = Take(key, "true or false", [](const Json& j) { return j.is_boolean(); })) out = v->get<bool>();
  }
  void Get(std::string_view key, std::int64_t& out) {
    if (const Json* v = Take(key, "an integer", IsInt)) out = v->get<std::int64_t>();
  }
  void Get(std::string_view key, double& out) {
    if (const Json* v = Take(key, "a number", [](const Json& j) { return j.is_number(); })) out = v->get<double>();
  }
  template <typename T>
  void Get(std::string_view key, std::optional<T>& out) {
    T value{};
    if (Has(key)) {
      Get(key, value);
      out = value;
    } else {
      seen_.push_back(key);
    }
  }
  void Get(std::string_view key, std::vector<std::string>& out) {
    const auto all_strings = [](const Json& j) {
      if (!j.is_array()) return false;
      for (const Json& item : j) {
        if (!item.is_string()) return false;
      }
      return true;
    };
    if (const Json* v = Take(key, "a list of strings", all_strings)) out = v->get<std::vector<std::string>>();
  }
  void Get(std::string_view key, std::map<std::string, std::string>& out) {
    const auto all_strings = [](const Json& j) {
      if (!j.is_object()) return false;
      for (const auto& item : j.items()) {
        if (!item.value().is_string()) return false;
      }
      return true;
    };
    if (const Json* v = Take(key, "an object of strings", all_strings)) {
      for (const auto& item : v->items()) out[item.key()] = item.value().get<std::string>();
    }
  }
  // The object under `key`, or an empty one.
  const Json& Object(std::string_view key) {
    static const Json& empty = *new Json(Json::object());
    const Json* v = Take(key, "an object", [](const Json& j) { return j.is_object(); });
    return v != nullptr ? *v : empty;
  }
  bool Has(std::string_view key) const { return Find(key) != nullptr; }
  void Finish() {
    if (!status_.ok() || !object_.is_object()) return;
    for (const auto& item : object_.items()) {
      if (std::find(seen_.begin(), seen_.end(), item.key()) != seen_.end()) continue;
      const std::string field = prefix_ + item.key();
      for (const char* later : kLaterFields) {
        if (field == later) {
          status_ = base::WithReason(absl::UnimplementedError(StrCat(field, ": is not implemented yet")),
                                     "UNIMPLEMENTED", {{"field", field}});
          return;
        }
      }
      status_ = base::FieldError(field.substr(0, 128), "is not a field of a job spec");
      return;
    }
  }

 private:
  static bool IsInt(const Json& j) {
    return j.is_number_integer() && (!j.is_number_unsigned() || j.get<std::uint64_t>() <= INT64_MAX);
  }
  void Fail(const std::string& field, const Json& got, std::string_view wanted) {
    if (status_.ok()) status_ = base::FieldError(field, StrCat("is ", base::Dump(got).substr(0, 64), ", wanted ", wanted));
  }
  // Null if the key is absent or its value is null.
  const Json* Find(std::string_view key) const {
    if (!object_.is_object()) return nullptr;
    const auto it = object_.find(key);
    return it != object_.end() && !it->is_null() ? &*it : nullptr;
  }
  // `key` must outlive the reader: a literal.
  template <typename Check>
  const Json* Take(std::string_view key, std::string_view wanted, Check check) {
    seen_.push_back(key);
    const Json* value = status_.ok() ? Find(key) : nullptr;
    if (value == nullptr || check(*value)) return value;
    Fail(prefix_ + std::string(key), *value, wanted);
    return nullptr;
  }

  const Json& object_;
  const std::string prefix_;
  absl::Status& status_;
  std::vector<std::string_view> seen_;
};

template <typename T>
void PutOptional(Json& json, const char* key, const std::optional<T>& value) {
  if (value.has_value()) json[key] = *value;
}

// `value` without the members that are equal in `from`.
Json Difference(Json value, const Json& from) {
  for (auto it = value.begin(); it != value.end();) {
    const auto same = from.find(it.key());
    if (same != from.end() && it->is_object() && same->is_object()) *it = Difference(std::move(*it), *same);
    const bool nothing = it->is_object() && it->empty();
    it = nothing || (same != from.end() && *same == *it) ? value.erase(it) : std::next(it);
  }
  return value;
}

}  // namespace

Json ToJson(const JobSpec& spec) {
  Json json = Json::object();
  json["display_name"] = spec.display_name;
  json["method"] = spec.method;
  json["base_model"] = spec.base_model;
  json["train_dataset"] = spec.train_dataset;
  json["eval_dataset"] = spec.eval_dataset;
  json["output_model"] = spec.output_model;
  json["device"] = spec.device;
  Json data = Json::object();
  PutOptional(data, "format", spec.data.format);
  data["max_seq_len"] = spec.data.max_seq_len;
  data["packing"] = spec.data.packing;
  PutOptional(data, "overlong", spec.data.overlong);
  data["train_on_prompt"] = spec.data.train_on_prompt;
  data["shuffle_seed"] = spec.data.shuffle_seed;
  PutOptional(data, "add_special_tokens", spec.data.add_special_tokens);
  json["data"] = std::move(data);
  if (spec.method == kMethodQLora) {
    Json qlora = Json::object();
    qlora["r"] = spec.qlora.r;
    qlora["alpha"] = spec.qlora.alpha;
    qlora["dropout"] = spec.qlora.dropout;
    qlora["target_modules"] = spec.qlora.target_modules;
    qlora["use_rslora"] = spec.qlora.use_rslora;
    qlora["double_quant"] = spec.qlora.double_quant;
    qlora["compute_dtype"] = spec.qlora.compute_dtype;
    qlora["seed"] = spec.qlora.seed;
    json["qlora"] = std::move(qlora);
  }
  if (spec.method == kMethodBitNetQat) {
    json["bitnet_qat"] = {{"preset", spec.bitnet_qat.preset},         {"act_scale", spec.bitnet_qat.act_scale},
                          {"act_bits", spec.bitnet_qat.act_bits},     {"ste", spec.bitnet_qat.ste},
                          {"scale_grad", spec.bitnet_qat.scale_grad}, {"init", spec.bitnet_qat.init},
                          {"compute_dtype", spec.bitnet_qat.compute_dtype}};
  }
  Json optim = Json::object();
  optim["lr"] = spec.optim.lr;
  optim["beta1"] = spec.optim.beta1;
  optim["beta2"] = spec.optim.beta2;
  optim["eps"] = spec.optim.eps;
  optim["weight_decay"] = spec.optim.weight_decay;
  optim["max_grad_norm"] = spec.optim.max_grad_norm;
  optim["schedule"] = spec.optim.schedule;
  PutOptional(optim, "warmup_steps", spec.optim.warmup_steps);
  PutOptional(optim, "warmup_ratio", spec.optim.warmup_ratio);
  optim["min_lr_ratio"] = spec.optim.min_lr_ratio;
  json["optim"] = std::move(optim);
  Json run = Json::object();
  PutOptional(run, "max_steps", spec.run.max_steps);
  PutOptional(run, "epochs", spec.run.epochs);
  run["micro_batch"] = spec.run.micro_batch;
  run["grad_accum"] = spec.run.grad_accum;
  run["activation_checkpointing"] = spec.run.activation_checkpointing;
  run["eval_every"] = spec.run.eval_every;
  run["save_every"] = spec.run.save_every;
  run["keep_last"] = spec.run.keep_last;
  run["seed"] = spec.run.seed;
  run["priority"] = spec.run.priority;
  run["allow_inexact_resume"] = spec.run.allow_inexact_resume;
  json["run"] = std::move(run);
  Json labels = Json::object();
  for (const auto& [key, value] : spec.labels) labels[key] = value;
  json["labels"] = std::move(labels);
  return json;
}

std::string Digest(const JobSpec& spec) {
  JobSpec defaults;
  defaults.method = spec.method;  // so that both have the same parts
  Json differs = Difference(ToJson(spec), ToJson(defaults));
  differs["method"] = spec.method;
  return base::Sha256Hex(base::DumpSorted(differs));  // the key order of ToJson may change
}

absl::StatusOr<JobSpec> ParseJobSpec(const Json& json) {
  JobSpec spec;
  absl::Status status;
  Reader top(json, "", status);
  top.Get("display_name", spec.display_name);
  top.Get("method", spec.method);
  top.Get("base_model", spec.base_model);
  top.Get("train_dataset", spec.train_dataset);
  top.Get("eval_dataset", spec.eval_dataset);
  top.Get("output_model", spec.output_model);
  top.Get("device", spec.device);
  top.Get("labels", spec.labels);
  const Json& data_json = top.Object("data");
  const Json& qlora_json = top.Object("qlora");
  const Json& bitnet_json = top.Object("bitnet_qat");
  const Json& optim_json = top.Object("optim");
  const Json& run_json = top.Object("run");
  top.Finish();

  Reader data(data_json, "data.", status);
  data.Get("format", spec.data.format);
  data.Get("max_seq_len", spec.data.max_seq_len);
  data.Get("packing", spec.data.packing);
  data.Get("overlong", spec.data.overlong);
  data.Get("train_on_prompt", spec.data.train_on_prompt);
  data.Get("shuffle_seed", spec.data.shuffle_seed);
  data.Get("add_special_tokens", spec.data.add_special_tokens);
  data.Finish();

  Reader qlora(qlora_json, "qlora.", status);
  qlora.Get("r", spec.qlora.r);
  qlora.Get("alpha", spec.qlora.alpha);
  qlora.Get("dropout", spec.qlora.dropout);
  qlora.Get("target_modules", spec.qlora.target_modules);
  qlora.Get("use_rslora", spec.qlora.use_rslora);
  qlora.Get("double_quant", spec.qlora.double_quant);
  qlora.Get("compute_dtype", spec.qlora.compute_dtype);
  qlora.Get("seed", spec.qlora.seed);
  qlora.Finish();

  Reader bitnet(bitnet_json, "bitnet_qat.", status);
  bitnet.Get("preset", spec.bitnet_qat.preset);
  bitnet.Get("act_scale", spec.bitnet_qat.act_scale);
  bitnet.Get("act_bits", spec.bitnet_qat.act_bits);
  bitnet.Get("ste", spec.bitnet_qat.ste);
  bitnet.Get("scale_grad", spec.bitnet_qat.scale_grad);
  bitnet.Get("init", spec.bitnet_qat.init);
  bitnet.Get("compute_dtype", spec.bitnet_qat.compute_dtype);
  bitnet.Finish();

  Reader optim(optim_json, "optim.", status);
  optim.Get("lr", spec.optim.lr);
  optim.Get("beta1", spec.optim.beta1);
  optim.Get("beta2", spec.optim.beta2);
  optim.Get("eps", spec.optim.eps);
  optim.Get("weight_decay", spec.optim.weight_decay);
  optim.Get("max_grad_norm", spec.optim.max_grad_norm);
  optim.Get("schedule", spec.optim.schedule);
  optim.Get("warmup_steps", spec.optim.warmup_steps);
  optim.Get("warmup_ratio", spec.optim.warmup_ratio);
  optim.Get("min_lr_ratio", spec.optim.min_lr_ratio);
  optim.Finish();

  Reader run(run_json, "run.", status);
  run.Get("max_steps", spec.run.max_steps);
  run.Get("epochs", spec.run.epochs);
  run.Get("micro_batch", spec.run.micro_batch);
  run.Get("grad_accum", spec.run.grad_accum);
  run.Get("activation_checkpointing", spec.run.activation_checkpointing);
  run.Get("eval_every", spec.run.eval_every);
  run.Get("save_every", spec.run.save_every);
  run.Get("keep_last", spec.run.keep_last);
  run.Get("seed", spec.run.seed);
  run.Get("priority", spec.run.priority);
  run.Get("allow_inexact_resume", spec.run.allow_inexact_resume);
  run.Finish();
  if (!status.ok()) return status;
  return spec;
}

Json EvalDataJson(const JobSpec& spec) {
  Json cut = {{"max_seq_len", spec.data.max_seq_len},
              {"train_on_prompt", spec.data.train_on_prompt},
              {"overlong", spec.data.overlong.value_or("")},
              {"trained_format", spec.data.format.value_or("text")}};
  if (spec.data.add_special_tokens.has_value()) cut["add_special_tokens"] = *spec.data.add_special_tokens;
  return cut;
}

}  // namespace nibble::jobs
