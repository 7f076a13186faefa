// Modules besides the linears with an adapter that are trained as whole copies, which the adapter stores: PEFT's
// modules_to_save. Embedding, head and norms can be saved.
#pragma once
#include <string>
#include <vector>

#include "server/model/adapter.h"
#include "server/model/model_config.h"
#include "server/model/tensor_table.h"

namespace nibble::model {

// The name of the adapter's copy of a tensor of the model: "base_model.model.model.norm.weight".
std::string SavedName(const std::string& tensor);

// The tensors of the model of which the adapter has a copy, in the order of RequiredTensors.
std::vector<TensorSpec> SavedTensors(const ModelConfig& model, const AdapterConfig& adapter);

// Whether embedding and head of the model are one trained copy.
bool SavesTiedEmbedding(const ModelConfig& model, const AdapterConfig& adapter);

// Paths of the modules of transformers' model that are no linears of the decoder: all norms, embedding, head, rotary
// embedding, activations, and the modules that contain others.
std::vector<std::string> OtherModules(const ModelConfig& model);

// Why modules_to_save does not fit this model, as "has ..., wanted ..."; "" if it fits. Each entry must match a
// module that can be saved, and no other module. The head of a tied model is its embedding, and an int8 head has no
// float values to train.
std::string SavedModulesProblem(const ModelConfig& model, const AdapterConfig& adapter, bool int8_head);

}  // namespace nibble::model
