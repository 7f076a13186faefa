#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "server/base/json.h"
#include "server/model/model_config.h"

namespace nibble::registry {

// A checkpoint of a job, and what its training method made of the base model.
struct CheckpointSource {
  // The weights themselves, in f32, instead of an adapter on the base.
  struct Masters {
    // Returns the architecture that was trained.
    std::function<model::ModelConfig(const model::ModelConfig& base)> config_of;
    int act_bits = 0;  // of the activations
  };

  std::string directory;
  std::string job_id;
  std::int64_t step = 0;
  std::string base_model;
  base::Json eval_data;  // for the provenance of the published model (jobs::EvalDataJson)
  std::optional<Masters> masters;
};

}  // namespace nibble::registry
