// Reads an adapter directory, as PEFT's save_pretrained and our own export write it, and checks it against its base
// model.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/files.h"
#include "server/model/adapter.h"
#include "server/model/model_config.h"

namespace nibble::model {

struct PeftAdapter {
  AdapterConfig config;
  std::vector<std::vector<float>> values;  // one entry per tensor of AdapterTensors, in that order
};

// Reads adapter_config.json and adapter_model.safetensors (F32, F16 or BF16, widened to f32). The file must hold
// exactly the tensors that config and model require. Other files of the directory are not read: the tokenizer comes
// from the base.
// Errors: NotFound (a required file), those of ParsePeftConfig and of OpenSafetensors, FailedPrecondition
// (ADAPTER_SHAPE: a tensor that is missing, has another shape or belongs to no target or saved module; metadata tensor,
// got, wanted), InvalidArgument (values that are not finite, an alpha above kMaxLoraAlpha, malformed metadata),
// Unimplemented (UNSUPPORTED_ADAPTER: pickled weights, another type, modules_to_save that do not fit the model), those
// of `admit`, which is called once, before any value is read, with the config and the bytes that the values take in
// f32.
absl::StatusOr<PeftAdapter> ReadPeftAdapter(
    base::FileSystem& files, const std::string& directory, const ModelConfig& model,
    const std::function<absl::Status(const AdapterConfig& config, std::int64_t bytes)>& admit = {});

}  // namespace nibble::model
