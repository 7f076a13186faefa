#include "server/trainer/training_ops.h"

#include "server/base/status_macros.h"

namespace nibble::trainer {

absl::StatusOr<Pass> Pass::Create(const model::ModelConfig& config, kernels::DType kv_dtype,
                                  const std::vector<std::int32_t>& tokens, const std::vector<std::int64_t>& segments,
                                  std::optional<std::uint64_t> draw) {
  Pass pass = {tokens, {}, draw, nullptr};
  NIBBLE_ASSIGN_OR_RETURN(pass.segments, PagedSegments::Create(config, kv_dtype, segments));
  pass.tokens.resize(static_cast<std::size_t>(PadRows(static_cast<std::int64_t>(tokens.size()))), 0);
  pass.position.assign(pass.segments->position(), pass.segments->position() + pass.segments->num_tokens());
  pass.position.resize(pass.tokens.size(), 0);
  return pass;
}

}  // namespace nibble::trainer
