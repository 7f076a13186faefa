#include "server/serve/penalties.h"

#include <limits>
#include <map>

namespace nibble::serve {

void Apply(const Penalties& penalties, std::span<const std::int32_t> prompt, std::span<const std::int32_t> generated,
           std::span<float> logits) {
  const auto logit = [&](std::int32_t token) -> float& { return logits[static_cast<std::size_t>(token)]; };
  for (const auto& [token, bias] : penalties.bias) logit(token) += bias;
  if (penalties.repetition != 1) {
    std::vector<bool> seen(logits.size());
    for (const auto tokens : {prompt, generated}) {
      for (const std::int32_t token : tokens) {
        if (seen[static_cast<std::size_t>(token)]) continue;
        seen[static_cast<std::size_t>(token)] = true;
        float& value = logit(token);
        value = value > 0 ? value / penalties.repetition : value * penalties.repetition;
      }
    }
  }
  if (penalties.presence == 0 && penalties.frequency == 0) return;
  std::map<std::int32_t, int> counts;
  for (const std::int32_t token : generated) ++counts[token];
  for (const auto& [token, count] : counts) {
    logit(token) -= static_cast<float>(count) * penalties.frequency;
    logit(token) -= penalties.presence;
  }
}

void MaskTokens(std::span<const std::int32_t> tokens, std::span<float> logits) {
  for (const std::int32_t token : tokens) {
    if (token < 0 || static_cast<std::size_t>(token) >= logits.size()) continue;
    logits[static_cast<std::size_t>(token)] = -std::numeric_limits<float>::infinity();
  }
}

}  // namespace nibble::serve
