#include "server/text/grammar.h"

#include <set>
#include <string_view>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/text/ffi_result.h"

namespace nibble::text {

namespace {

constexpr std::size_t kBits = 32;  // of a word

NibbleGrammarKind ToFfi(GrammarKind kind) {
  switch (kind) {
    case GrammarKind::kJsonSchema: return NIBBLE_GRAMMAR_JSON_SCHEMA;
    case GrammarKind::kRegex: return NIBBLE_GRAMMAR_REGEX;
    case GrammarKind::kChoice: return NIBBLE_GRAMMAR_CHOICE;
    case GrammarKind::kLark: return NIBBLE_GRAMMAR_LARK;
    case GrammarKind::kTools: return NIBBLE_GRAMMAR_TOOLS;
  }
  return NIBBLE_GRAMMAR_LARK;
}

}  // namespace

Grammar::Grammar(NibbleGrammar* handle, std::shared_ptr<const Tokenizer> tokenizer,
                 std::shared_ptr<std::atomic<std::int64_t>> live_bytes)
    : handle_(handle), tokenizer_(std::move(tokenizer)), live_bytes_(std::move(live_bytes)) {
  *live_bytes_ += bytes();
}
Grammar::~Grammar() {
  *live_bytes_ -= bytes();
  nibble_grammar_free(handle_);
}
std::int64_t Grammar::bytes() const { return nibble_grammar_bytes(handle_); }

absl::StatusOr<std::unique_ptr<GrammarFollower>> GrammarFollower::Start(std::shared_ptr<const Grammar> grammar) {
  NibbleFollower* handle = nullptr;
  FfiBytes answer;
  const NibbleTextCode code = nibble_follower_new(grammar->handle_, &handle, answer.out());
  NIBBLE_RETURN_IF_ERROR(FfiStatus(code, answer));
  return std::unique_ptr<GrammarFollower>(new GrammarFollower(handle, std::move(grammar)));
}

GrammarFollower::~GrammarFollower() { nibble_follower_free(handle_); }

absl::StatusOr<std::span<const std::uint32_t>> GrammarFollower::AllowedTokens(std::int64_t vocab_size) {
  allowed_.resize((static_cast<std::size_t>(vocab_size) + kBits - 1) / kBits);
  FfiBytes answer;
  const NibbleTextCode code = nibble_follower_allowed(handle_, allowed_.data(), allowed_.size(), answer.out());
  NIBBLE_RETURN_IF_ERROR(FfiStatus(code, answer));
  return std::span<const std::uint32_t>(allowed_);
}

absl::Status GrammarFollower::Accept(std::int32_t token) {
  FfiBytes answer;
  return FfiStatus(nibble_follower_accept(handle_, token, answer.out()), answer);
}

GrammarCompiler::GrammarCompiler(std::shared_ptr<const Tokenizer> tokenizer, std::int64_t vocab_size,
                                 std::vector<std::int32_t> end_tokens)
    : tokenizer_(std::move(tokenizer)), vocab_size_(vocab_size), end_tokens_(std::move(end_tokens)) {}

GrammarCompiler::~GrammarCompiler() { nibble_compiler_free(handle_); }

absl::StatusOr<const NibbleCompiler*> GrammarCompiler::Prepare() {
  base::MutexLock lock(prepare_mutex_);
  if (handle_ != nullptr) return handle_;
  if (!tokenizer_->decodes_by_token())
    return absl::InvalidArgumentError("the model's tokenizer only decodes whole texts");
  std::set<std::int32_t> special;
  for (const AddedToken& token : tokenizer_->added_tokens()) {
    if (token.special) special.insert(token.id);
  }
  const TokenBytes& bytes = tokenizer_->token_bytes();
  std::string blob;
  std::vector<std::uint32_t> ends;
  std::vector<std::uint8_t> is_special;
  for (std::int32_t id = 0; id < vocab_size_; ++id) {
    blob += bytes.Of(id);
    ends.push_back(static_cast<std::uint32_t>(blob.size()));
    is_special.push_back(special.contains(id) ? 1 : 0);
  }
  const NibbleVocabulary vocabulary = {.blob = FfiText(blob),
                                       .ends = ends.data(),
                                       .special = is_special.data(),
                                       .size = ends.size(),
                                       .end_tokens = end_tokens_.data(),
                                       .num_end_tokens = end_tokens_.size()};
  FfiBytes answer;
  const NibbleTextCode code = nibble_compiler_new(tokenizer_->handle_, &vocabulary, &handle_, answer.out());
  NIBBLE_RETURN_IF_ERROR(FfiStatus(code, answer));
  return handle_;
}

std::shared_ptr<const Grammar> GrammarCompiler::Find(const Key& key) {
  const auto found = entries_.find(key);
  if (found == entries_.end()) return nullptr;
  used_.splice(used_.begin(), used_, found->second.used);
  return found->second.grammar;
}

void GrammarCompiler::DropOldest() {
  entries_.erase(used_.back());
  used_.pop_back();
}

void GrammarCompiler::Keep(const Key& key, std::shared_ptr<const Grammar> grammar) {
  if (entries_.contains(key)) return;  // another call has compiled it meanwhile
  used_.push_front(key);
  entries_[key] = {std::move(grammar), used_.begin()};
  const auto total = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::int64_t bytes = 0;
    for (const auto& [_, entry] : entries_) bytes += entry.grammar->bytes();
    return bytes;
  };
  while (entries_.size() > kMaxKept || (entries_.size() > 1 && total() > kMaxKeptBytes)) DropOldest();
}

std::shared_ptr<const Grammar> GrammarCompiler::Kept(const GrammarSource& source) {
  base::MutexLock lock(mutex_);
  return Find({source.kind, source.text});
}

absl::StatusOr<std::shared_ptr<const Grammar>> GrammarCompiler::Compile(const GrammarSource& source,
                                                                        const char* field) {
  if (source.text.size() > GrammarSource::kMaxBytes) {
    return base::FieldError(
        field, base::StrCat("has ", source.text.size(), " bytes, wanted at most ", GrammarSource::kMaxBytes));
  }
  if (auto kept = Kept(source); kept != nullptr) return kept;
  const auto compile = [&]() -> absl::StatusOr<NibbleGrammar*> {
    NIBBLE_ASSIGN_OR_RETURN(const NibbleCompiler* compiler, Prepare());
    NibbleGrammar* handle = nullptr;
    FfiBytes answer;
    const NibbleTextCode code =
        nibble_grammar_compile(compiler, ToFfi(source.kind), FfiText(source.text), &handle, answer.out());
    NIBBLE_RETURN_IF_ERROR(FfiStatus(code, answer));
    return handle;
  };
  const absl::StatusOr<NibbleGrammar*> handle = compile();
  if (absl::IsInvalidArgument(handle.status())) return base::FieldError(field, base::ToStd(handle.status().message()));
  NIBBLE_RETURN_IF_ERROR(handle.status());
  auto grammar = std::make_shared<const Grammar>(*handle, tokenizer_, live_bytes_);
  base::MutexLock lock(mutex_);
  Keep({source.kind, source.text}, grammar);
  if (*live_bytes_ > kMaxLiveBytes) {
    return base::WithReason(absl::ResourceExhaustedError(base::StrCat(
                                field, ": the constraints of all requests take more than ", kMaxLiveBytes, " bytes")),
                            "QUEUE_FULL");
  }
  return grammar;
}

}  // namespace nibble::text
