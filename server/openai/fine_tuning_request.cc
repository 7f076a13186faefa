#include "server/openai/fine_tuning_request.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

#include "server/base/error.h"
#include "server/base/ids.h"
#include "server/base/sha256.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/base/utf8.h"
#include "server/messages/message_json.h"
#include "server/openai/json_fields.h"

namespace nibble::openai {

namespace {

using base::Json;
using base::StrCat;

constexpr char kExtension[] = "nibble";
constexpr std::int64_t kMaxBatch = 65536;
constexpr std::int64_t kMicroBatch = 4;  // default of RunConfig.micro_batch: what memory allows is unknown here
constexpr std::int64_t kMaxEpochs = 1'000'000;
constexpr std::size_t kMaxSuffixBytes = 40;
constexpr std::size_t kMaxNameBytes = 63;  // of a model (base::CheckName)
constexpr std::size_t kUniqueBytes = 8;
constexpr std::size_t kMaxMetadata = 16;  // as labels of a job

// Fields of the spec that a field of OpenAI's API sets.
struct Name {
  const char* spec;
  const char* client;
};
constexpr Name kNames[] = {{"base_model", "model"},
                           {"train_dataset", "training_file"},
                           {"eval_dataset", "validation_file"},
                           {"run.seed", "seed"},
                           {"labels", "metadata"},
                           {"publish.output_model", "suffix"},
                           {"request_id", "Idempotency-Key"}};
constexpr Name kHyperparameters[] = {{"run.epochs", "n_epochs"},
                                     {"run.micro_batch", "batch_size"},
                                     {"run.grad_accum", "batch_size"},
                                     {"optim.lr", "learning_rate_multiplier"}};

// The value at a path such as "run.max_steps"; nullptr: absent or null.
const Json* Find(const Json& object, std::string_view path) {
  const Json* at = &object;
  while (true) {
    if (!at->is_object()) return nullptr;
    const std::string_view name = path.substr(0, path.find('.'));
    const auto it = at->find(name);
    if (it == at->end() || it->is_null()) return nullptr;
    if (name.size() == path.size()) return &*it;
    at = &*it;
    path.remove_prefix(name.size() + 1);
  }
}

bool IsAuto(const Json* value) { return value == nullptr || (value->is_string() && *value == "auto"); }

void ReadHyperparameters(JsonFields& fields, v1::JobSpec& spec) {
  if (!IsAuto(fields.Any("n_epochs"))) {
    const std::int64_t epochs = fields.Int("n_epochs").value_or(0);
    if (epochs < 1 || epochs > kMaxEpochs)
      fields.Fail("n_epochs", StrCat("is ", epochs, ", wanted \"auto\" or 1 to ", kMaxEpochs));
    spec.mutable_run()->set_epochs(static_cast<double>(epochs));
  }
  if (!IsAuto(fields.Any("batch_size"))) {
    const std::int64_t batch = fields.Int("batch_size").value_or(0);
    if (batch < 1 || batch > kMaxBatch) {
      return fields.Fail("batch_size", StrCat("is ", batch, ", wanted \"auto\" or 1 to ", kMaxBatch));
    }
    std::int64_t micro = std::min(batch, kMicroBatch);
    while (batch % micro != 0) --micro;
    spec.mutable_run()->set_micro_batch(static_cast<std::int32_t>(micro));
    spec.mutable_run()->set_grad_accum(static_cast<std::int32_t>(batch / micro));
  }
  if (!IsAuto(fields.Any("learning_rate_multiplier"))) {
    const double multiplier = fields.Number("learning_rate_multiplier").value_or(0);
    if (!(multiplier > 0) || !std::isfinite(multiplier))
      fields.Fail("learning_rate_multiplier", "wanted \"auto\" or a number above 0");
    spec.mutable_optim()->set_lr(kDefaultLearningRate * multiplier);
  }
}

absl::Status ReadHyperparameters(const Json& object, const std::string& path, v1::JobSpec& spec) {
  JsonFields fields(object, StrCat(path, "."));
  ReadHyperparameters(fields, spec);
  return fields.Finish();
}

// Returns the hyperparameters; nullptr: there are none.
absl::StatusOr<const Json*> ReadMethod(const Json& method) {
  JsonFields fields(method, "method.");
  const std::string type = fields.String("type").value_or("");
  if (type != "supervised") fields.Fail("type", StrCat("is \"", type, "\", wanted \"supervised\""));
  fields.Unsupported("dpo");
  fields.Unsupported("reinforcement");
  const Json* supervised = fields.Any("supervised");
  NIBBLE_RETURN_IF_ERROR(fields.Finish());
  if (supervised == nullptr) return nullptr;
  JsonFields inner(*supervised, "method.supervised.");
  const Json* hyperparameters = inner.Any("hyperparameters");
  NIBBLE_RETURN_IF_ERROR(inner.Finish());
  return hyperparameters;
}

absl::Status ReadMetadata(const Json& metadata, v1::JobSpec& spec) {
  if (!metadata.is_object())
    return base::FieldError("metadata", StrCat("is ", TypeName(metadata), ", wanted an object"));
  if (metadata.size() > kMaxMetadata) {
    return base::FieldError("metadata", StrCat("has ", metadata.size(), " entries, wanted at most ", kMaxMetadata));
  }
  for (const auto& [key, value] : metadata.items()) {
    if (!value.is_string())
      return base::FieldError(StrCat("metadata.", key), StrCat("is ", TypeName(value), ", wanted a string"));
    (*spec.mutable_labels())[key] = value.get<std::string>();
  }
  return absl::OkStatus();
}

// BASE-SUFFIX-UNIQUE. A repeated request has the same name, and other requests with the same suffix have others.
absl::StatusOr<std::string> OutputName(std::string base, const std::string& suffix, const std::string& key) {
  const bool good = !suffix.empty() && suffix.size() <= kMaxSuffixBytes && suffix.find("..") == std::string::npos &&
                    suffix.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") ==
                        std::string::npos;
  if (!good) {
    return base::FieldError("suffix",
                            StrCat("is \"", suffix.substr(0, 2 * kMaxSuffixBytes), "\", wanted 1 to ", kMaxSuffixBytes,
                                   " letters, digits, \"-\", \"_\" and \".\" without \"..\""));
  }
  const std::string unique = base::Sha256Hex(key.empty() ? base::NewId("suffix") : key).substr(0, kUniqueBytes);
  base.resize(std::min(base.size(), kMaxNameBytes - suffix.size() - kUniqueBytes - 2));
  while (base.ends_with('.')) base.pop_back();  // the suffix may begin with one
  return StrCat(base, "-", suffix, "-", unique);
}

// Merges the extension over the spec.
absl::Status Merge(const Json& extension, v1::JobSpec& spec) {
  absl::Status merged = messages::FromJson(extension, spec);
  if (merged.ok()) return merged;
  const auto metadata = base::ReasonMetadata(merged);
  const auto field = metadata.find("field");
  if (field == metadata.end()) return merged;
  const std::string message(merged.message());
  return base::FieldError(StrCat(kExtension, ".", field->second), message.substr(field->second.size() + 2));
}

}  // namespace

std::string FineTuningCall::ClientField(std::string_view field) const {
  if (Find(extension, field) == nullptr) {
    for (const Name& name : kNames) {
      const std::string_view spec = name.spec;
      if (field == spec) return name.client;
      if (field.starts_with(StrCat(spec, ".")) || field.starts_with(StrCat(spec, "[")))
        return StrCat(name.client, field.substr(spec.size()));
    }
    for (const Name& name : kHyperparameters) {
      if (field == name.spec) return StrCat(hyperparameters, ".", name.client);
    }
  }
  return StrCat(kExtension, ".", field);
}

absl::StatusOr<FineTuningCall> ParseFineTuningJob(const Json& body, const std::string& idempotency_key) {
  FineTuningCall call;
  if (!base::IsValidUtf8(idempotency_key)) return base::FieldError("Idempotency-Key", "is not UTF-8");
  call.request.set_request_id(idempotency_key);
  v1::JobSpec& spec = *call.request.mutable_spec();
  JsonFields fields(body);
  spec.set_base_model(fields.String("model").value_or(""));
  spec.set_train_dataset(fields.String("training_file").value_or(""));
  if (const auto file = fields.String("validation_file")) spec.set_eval_dataset(*file);
  if (const auto seed = fields.Int("seed")) {
    if (*seed < 0) fields.Fail("seed", StrCat("is ", *seed, ", wanted 0 or more"));
    spec.mutable_run()->set_seed(*seed);
  }
  const auto suffix = fields.String("suffix");
  const Json* metadata = fields.Any("metadata");
  const Json* method = fields.Any("method");
  const Json* hyperparameters = fields.Any("hyperparameters");
  const Json* extension = fields.Any(kExtension);
  fields.Unsupported("integrations");
  NIBBLE_RETURN_IF_ERROR(fields.Finish());

  if (metadata != nullptr) NIBBLE_RETURN_IF_ERROR(ReadMetadata(*metadata, spec));
  if (method != nullptr) {
    NIBBLE_ASSIGN_OR_RETURN(const Json* inner, ReadMethod(*method));
    if (inner != nullptr && hyperparameters != nullptr) {
      return base::FieldError("hyperparameters",
                              "is set with method.supervised.hyperparameters, wanted only one of them");
    }
    if (inner != nullptr) {
      hyperparameters = inner;
      call.hyperparameters = "method.supervised.hyperparameters";
    }
  }
  if (hyperparameters != nullptr)
    NIBBLE_RETURN_IF_ERROR(ReadHyperparameters(*hyperparameters, call.hyperparameters, spec));

  call.extension = extension == nullptr ? Json::object() : *extension;
  if (!call.extension.is_object()) {
    return base::FieldError(kExtension, StrCat("is ", TypeName(call.extension), ", wanted an object"));
  }
  for (const char* part : {"run.micro_batch", "run.grad_accum"}) {
    if (spec.run().has_micro_batch() && Find(call.extension, part) != nullptr) {
      return base::FieldError(StrCat(kExtension, ".", part),
                              StrCat("is set with ", call.hyperparameters, ".batch_size, wanted only one of them"));
    }
  }
  NIBBLE_RETURN_IF_ERROR(Merge(call.extension, spec));
  if (spec.base_model().empty()) return base::FieldError("model", "is not set, wanted the name of a model");
  if (spec.train_dataset().empty()) return base::FieldError("training_file", "is not set, wanted the id of a file");
  if (suffix.has_value() && spec.publish().output_model().empty()) {
    NIBBLE_ASSIGN_OR_RETURN(*spec.mutable_publish()->mutable_output_model(),
                            OutputName(spec.base_model(), *suffix, idempotency_key));
  }
  if (spec.method_case() == v1::JobSpec::METHOD_NOT_SET) spec.mutable_qlora();
  return call;
}

}  // namespace nibble::openai
