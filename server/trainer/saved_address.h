// Lets an autograd node keep the address of an object that is not a tensor and outlives the graph.
#pragma once
#include <torch/autograd.h>

#include <cstdint>

namespace nibble::trainer {

template <typename T>
void Remember(torch::autograd::AutogradContext* ctx, const char* key, const T* object) {
  ctx->saved_data[key] = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(object));
}
// T must be const if the remembered object is.
template <typename T>
T& Recall(torch::autograd::AutogradContext* ctx, const char* key) {
  return *reinterpret_cast<T*>(ctx->saved_data[key].toInt());
}

}  // namespace nibble::trainer
