#include "server/text/tokenizer_trainer.h"

#include <vector>

#include "server/base/json.h"
#include "server/base/status_macros.h"
#include "server/text/ffi_result.h"

namespace nibble::text {

absl::StatusOr<std::unique_ptr<TokenizerTrainer>> TokenizerTrainer::Make(std::span<const std::string> special_tokens,
                                                                         std::int64_t vocab_size,
                                                                         std::int64_t max_letters) {
  const std::string names =
      base::Dump(base::Json(std::vector<std::string>(special_tokens.begin(), special_tokens.end())));
  NibbleTrainer* handle = nullptr;
  FfiBytes answer;
  NIBBLE_RETURN_IF_ERROR(FfiStatus(nibble_trainer_new(FfiText(names), static_cast<std::size_t>(vocab_size),
                                                      static_cast<std::size_t>(max_letters), &handle, answer.out()),
                                   "tokenizer", answer));
  return std::unique_ptr<TokenizerTrainer>(new TokenizerTrainer(handle));
}

TokenizerTrainer::~TokenizerTrainer() { nibble_trainer_free(handle_); }

absl::Status TokenizerTrainer::Count(std::string_view text) {
  FfiBytes answer;
  return FfiStatus(nibble_trainer_count(handle_, FfiText(text), answer.out()), "text", answer);
}

std::int64_t TokenizerTrainer::PeakBytes(std::int64_t letters, std::int64_t vocab_size) {
  return static_cast<std::int64_t>(
      nibble_trainer_peak_bytes(static_cast<std::size_t>(letters), static_cast<std::size_t>(vocab_size)));
}

absl::StatusOr<std::string> TokenizerTrainer::Train() const {
  FfiBytes answer;
  NIBBLE_RETURN_IF_ERROR(FfiStatus(nibble_trainer_train(handle_, answer.out()), "tokenizer", answer));
  return std::string(answer.view());
}

}  // namespace nibble::text
