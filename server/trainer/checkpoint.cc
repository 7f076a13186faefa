#include "server/trainer/checkpoint.h"

#include <cstring>
#include <iterator>
#include <span>
#include <string_view>
#include <utility>

#include "server/base/error.h"
#include "server/base/json.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/convert/checkpoint_model.h"
#include "server/model/adapter.h"
#include "server/model/artifact.h"
#include "server/model/safetensors.h"
#include "server/model/safetensors_writer.h"

namespace nibble::trainer {
namespace {

constexpr char kStateFile[] = "state.json";
constexpr std::uint64_t kMaxMetricsBytes = 1 << 16;
// Suffixes of a parameter's name that give the names of its values, first moments and second moments (as in torch).
constexpr const char* kParts[] = {"", ".exp_avg", ".exp_avg_sq"};

base::Json ToJson(const RunIdentity& identity) {
  return {{"spec_digest", identity.spec_digest}, {"base_digest", identity.base_digest},
          {"data_digest", identity.data_digest}, {"isa", identity.isa},
          {"threads", identity.threads},         {"version", identity.version}};
}

// The metrics of the checkpoint's step. A resumed attempt that saves before its next step shows them again.
absl::StatusOr<std::map<std::string, double>> ReadMetrics(base::FileSystem& files, const std::string& directory) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string text,
                          files.Read(base::JoinPath(directory, store::kCheckpointMetricsFile), kMaxMetricsBytes));
  NIBBLE_ASSIGN_OR_RETURN(const base::Json json, base::ParseJson(text));
  std::map<std::string, double> metrics;
  for (const auto& item : json.items()) {
    if (item.value().is_number()) metrics[item.key()] = item.value().get<double>();
  }
  return metrics;
}

// One tensor of the file: the elements or codes of a tensor, or its scales.
struct StoredTensor {
  std::string name;
  kernels::DType dtype;
  std::vector<std::int64_t> shape;
  std::span<std::byte> bytes;
  std::int64_t block = 0;  // of scales: elements per scale, which the file's metadata hold under `name`
};

// The tensors of a parameter: its values and its moments, each followed by its scales if its type has them. Files
// that were written before types other than f32 existed have this form too.
std::vector<StoredTensor> StoredTensors(const Parameter& parameter, const Moments& moments) {
  std::vector<StoredTensor> stored;
  const TensorRef* tensors[] = {&parameter.value, &moments.m.ref(), &moments.v.ref()};
  for (std::size_t p = 0; p < std::size(kParts); ++p) {
    const TensorRef& tensor = *tensors[p];
    if (tensor.data == nullptr) continue;  // a moment that the optimizer does not have
    const std::string name = parameter.name + kParts[p];
    stored.push_back({name, StoredType(tensor.type), parameter.shape, tensor.bytes()});
    if (!HasScales(tensor.type)) continue;
    const std::span<float> scales(tensor.scales, static_cast<std::size_t>(tensor.num_scales()));
    stored.push_back({name + convert::kCheckpointScales,
                      kernels::DType::kF32,
                      {tensor.num_scales()},
                      std::as_writable_bytes(scales),
                      tensor.block});
  }
  return stored;
}

// The elements per scale that the file's metadata hold for `scales`; "" if there are none.
std::string BlockOf(const model::SafetensorsFiles& file, const std::string& scales) {
  const auto found = file.metadata.find(scales);
  return found == file.metadata.end() ? "" : found->second;
}

}  // namespace

absl::StatusOr<store::CheckpointInfo> SaveCheckpoint(base::FileSystem& files, const std::string& attempt_directory,
                                                     const TrainingProgress& progress, const RunIdentity& identity,
                                                     const std::vector<Parameter>& parameters,
                                                     const std::vector<Moments>& moments,
                                                     const model::AdapterConfig* adapter,
                                                     const base::Cancelled& cancelled) {
  NIBBLE_ASSIGN_OR_RETURN(store::PendingDirectory pending,
                          store::BeginCheckpoint(files, attempt_directory, progress.step));
  std::vector<model::TensorPlan> plan;
  std::map<std::string, std::string_view> bytes;
  std::map<std::string, std::string> blocks;  // stays empty without scales, as in files from before they existed
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    for (StoredTensor& tensor : StoredTensors(parameters[i], moments[i])) {
      if (tensor.block > 0) blocks[tensor.name] = base::StrCat(tensor.block);
      bytes[tensor.name] = {reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()};
      plan.push_back({std::move(tensor.name), tensor.dtype, std::move(tensor.shape)});
    }
  }
  NIBBLE_ASSIGN_OR_RETURN(auto writer,
                          model::SafetensorsWriter::Create(
                              files, base::JoinPath(pending.path(), convert::kCheckpointTensorsFile), plan, blocks));
  for (const model::TensorPlan& tensor : writer->order()) {
    NIBBLE_RETURN_IF_ERROR(base::CheckCancelled(cancelled));
    NIBBLE_RETURN_IF_ERROR(writer->Put(tensor.name, bytes.at(tensor.name)));
  }
  NIBBLE_RETURN_IF_ERROR(writer->Finish());
  const base::Json state = {{"step", progress.step},
                            {"micro_batches", progress.micro_batches},
                            {"tokens", progress.tokens},
                            {"trained_tokens", progress.trained_tokens},
                            {"epoch", progress.cursor.epoch},
                            {"examples_taken", progress.cursor.taken},
                            {"evaluated_step", progress.evaluated_step},
                            {"best_eval_loss", progress.best_eval_loss},  // null (infinite) before any evaluation
                            {"identity", ToJson(identity)}};
  NIBBLE_RETURN_IF_ERROR(
      base::WriteFileAtomically(files, base::JoinPath(pending.path(), kStateFile), base::Dump(state, 2)));
  if (adapter != nullptr) {
    NIBBLE_RETURN_IF_ERROR(base::WriteFileAtomically(files, base::JoinPath(pending.path(), model::kAdapterConfigFile),
                                                     base::Dump(model::ToPeftConfig(*adapter), 2)));
  }
  NIBBLE_RETURN_IF_ERROR(base::WriteFileAtomically(files, base::JoinPath(pending.path(), store::kCheckpointMetricsFile),
                                                   base::Dump(base::Json(progress.metrics))));
  NIBBLE_ASSIGN_OR_RETURN(const store::Manifest manifest, pending.Commit(cancelled));
  store::CheckpointInfo saved;
  saved.step = progress.step;
  saved.directory = pending.target();
  saved.bytes = manifest.total_bytes();
  saved.digest = manifest.digest;
  saved.metrics = progress.metrics;
  return saved;
}

namespace {

// state.json, whose "identity" is an object.
absl::StatusOr<base::Json> ReadState(base::FileSystem& files, const std::string& directory) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string text, files.Read(base::JoinPath(directory, kStateFile), 1 << 20));
  NIBBLE_ASSIGN_OR_RETURN(base::Json state, base::ParseJson(text));
  const auto found = state.is_object() ? state.find("identity") : state.end();
  if (found == state.end() || !found->is_object()) {
    return absl::DataLossError(base::StrCat("checkpoint ", directory, ": ", kStateFile, " has no run identity"));
  }
  return state;
}

absl::Status BaseMismatch(const std::string& got, const std::string& wanted) {
  return base::WithReason(
      absl::FailedPreconditionError(base::StrCat("the job trains on weights ", got, ", wanted ", wanted,
                                                 ", on which the weights that it starts from were trained")),
      "BASE_MISMATCH", {{"field", "base_model"}, {"got", got}, {"wanted", wanted}});
}

// Copies the values of the parameters from the file; also their moments, unless `moments` is null.
absl::Status TakeTensors(const std::string& path, std::vector<Parameter>& parameters, std::vector<Moments>* moments,
                         const base::Cancelled& cancelled) {
  NIBBLE_ASSIGN_OR_RETURN(const auto tensors, model::OpenSafetensors(path));
  const Moments none{};
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    NIBBLE_RETURN_IF_ERROR(base::CheckCancelled(cancelled));
    for (const StoredTensor& tensor : StoredTensors(parameters[i], moments != nullptr ? (*moments)[i] : none)) {
      const auto it = tensors.tensors.find(tensor.name);
      if (it == tensors.tensors.end() || it->second.dtype != tensor.dtype ||
          it->second.bytes.size() != tensor.bytes.size() ||
          (tensor.block > 0 && BlockOf(tensors, tensor.name) != base::StrCat(tensor.block))) {
        return absl::DataLossError(
            base::StrCat(path, ": ", tensor.name, " is missing or has another type, size or block"));
      }
      std::memcpy(tensor.bytes.data(), it->second.bytes.data(), tensor.bytes.size());
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status LoadWeights(base::FileSystem& files, const std::string& directory, const std::string& base_digest,
                         std::vector<Parameter>& parameters, const base::Cancelled& cancelled) {
  NIBBLE_RETURN_IF_ERROR(store::Verify(files, directory, cancelled).status());
  NIBBLE_ASSIGN_OR_RETURN(const base::Json state, ReadState(files, directory));
  NIBBLE_ASSIGN_OR_RETURN(const std::string trained_on, base::GetString(state["identity"], "base_digest", kStateFile));
  if (trained_on != base_digest) return BaseMismatch(base_digest, trained_on);
  return TakeTensors(base::JoinPath(directory, convert::kCheckpointTensorsFile), parameters, nullptr, cancelled);
}

absl::Status LoadAdapterWeights(base::FileSystem& files, const std::string& directory, const std::string& base_digest,
                                std::vector<Parameter>& parameters, const base::Cancelled& cancelled) {
  NIBBLE_RETURN_IF_ERROR(store::Verify(files, directory, cancelled).status());
  NIBBLE_ASSIGN_OR_RETURN(const auto adapter, model::Artifact::Open(directory));
  const std::string& trained_on = adapter->info().base_digest;
  if (trained_on != base_digest) return BaseMismatch(base_digest, trained_on);
  return TakeTensors(base::JoinPath(directory, model::kAdapterWeightsFile), parameters, nullptr, cancelled);
}

absl::StatusOr<TrainingProgress> LoadCheckpoint(base::FileSystem& files, const std::string& directory,
                                                const RunIdentity& identity, std::vector<Parameter>& parameters,
                                                std::vector<Moments>& moments, const base::Cancelled& cancelled,
                                                CheckpointOf whose) {
  NIBBLE_RETURN_IF_ERROR(store::Verify(files, directory, cancelled).status());
  NIBBLE_ASSIGN_OR_RETURN(const base::Json state, ReadState(files, directory));
  TrainingProgress progress;
  const base::Json want = ToJson(identity);
  for (const auto& [key, value] : want.items()) {
    const base::Json got = state["identity"].value(key, base::Json());
    if (got == value) continue;
    const bool other_job = whose == CheckpointOf::kOtherJob;
    if (key == "isa" || key == "threads" || key == "version") {
      progress.differences.push_back(base::StrCat(key, " was ", base::Dump(got), ", is ", base::Dump(value)));
    } else if (other_job && key == "base_digest") {
      return BaseMismatch(identity.base_digest, got.is_string() ? got.get<std::string>() : "");
    } else if (!other_job) {
      return absl::FailedPreconditionError(base::StrCat("checkpoint ", directory, " was made with ", key, " ",
                                                        base::Dump(got), ", this run has ", base::Dump(value),
                                                        ": the result would differ"));
    }
  }
  NIBBLE_RETURN_IF_ERROR(
      TakeTensors(base::JoinPath(directory, convert::kCheckpointTensorsFile), parameters, &moments, cancelled));
  NIBBLE_ASSIGN_OR_RETURN(progress.step, base::GetInt(state, "step", kStateFile));
  NIBBLE_ASSIGN_OR_RETURN(progress.micro_batches, base::GetInt(state, "micro_batches", kStateFile));
  NIBBLE_ASSIGN_OR_RETURN(progress.tokens, base::GetInt(state, "tokens", kStateFile));
  NIBBLE_ASSIGN_OR_RETURN(progress.trained_tokens, base::GetInt(state, "trained_tokens", kStateFile));
  NIBBLE_ASSIGN_OR_RETURN(progress.cursor.epoch, base::GetInt(state, "epoch", kStateFile));
  NIBBLE_ASSIGN_OR_RETURN(progress.cursor.taken, base::GetInt(state, "examples_taken", kStateFile));
  NIBBLE_ASSIGN_OR_RETURN(progress.evaluated_step, base::GetInt(state, "evaluated_step", kStateFile, progress.step));
  NIBBLE_ASSIGN_OR_RETURN(progress.best_eval_loss,
                          base::GetNumber(state, "best_eval_loss", kStateFile, progress.best_eval_loss));
  NIBBLE_ASSIGN_OR_RETURN(progress.metrics, ReadMetrics(files, directory));
  return progress;
}

}  // namespace nibble::trainer
