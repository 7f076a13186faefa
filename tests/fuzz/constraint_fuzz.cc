// F16: a constraint: one byte for its kind (0 schema, 1 expression, 2 choice, 3 Lark, 4 tools), then its source.
// Constraints are untrusted programs: they compile in time and within their memory, or are refused by name. A text that
// follows one and comes to its end is UTF-8, and JSON if the constraint is a schema.
#include <cstdint>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "server/base/json.h"
#include "server/base/strings.h"
#include "server/base/utf8.h"
#include "server/text/grammar.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/token_bits.h"

using nibble::fuzz::Expect;
using nibble::fuzz::ExpectClean;
using nibble::support::TokensOf;
namespace text = nibble::text;

namespace {

constexpr int kMaxTokens = 100;
constexpr std::int32_t kEnd = 2;  // <|im_end|>

struct Fixture {
  Fixture() {
    std::ifstream file(NIBBLE_SOURCE_DIR "/tests/golden/text/hf_qwen.json", std::ios::binary);
    auto loaded =
        text::Tokenizer::FromJson(std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()));
    Expect(loaded.ok(), "the tokenizer of the golden files loads");
    tokenizer = *std::move(loaded);
    vocab_size = tokenizer->ids().back() + 1;
  }
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::int64_t vocab_size = 0;
};

// Draws allowed tokens, the same ones for the same grammar and `seed`.
void Follow(const Fixture& fixture, const std::shared_ptr<const text::Grammar>& grammar, bool is_json,
            std::uint64_t seed, std::string_view input) {
  auto follower = text::GrammarFollower::Start(grammar);
  Expect(follower.ok(), "a compiled grammar can be followed");
  std::string written;
  for (int step = 0; step < kMaxTokens; ++step) {
    const auto tokens = (*follower)->AllowedTokens(fixture.vocab_size);
    ExpectClean(tokens.status(), input);
    if (!tokens.ok()) return;  // too costly at this point
    const std::vector<std::int32_t> allowed = TokensOf(*tokens);
    Expect(!allowed.empty(), "a token may be next, or the grammar fails");
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    const std::int32_t id = allowed[(seed >> 33) % allowed.size()];
    if (id == kEnd) {
      // Our reader refuses numbers beyond a double, which JSON allows.
      const bool may_overflow = written.find_first_of("eE") != written.npos;
      Expect(!is_json || may_overflow || nibble::base::Json::accept(written), "a complete text of a schema is JSON");
      return;
    }
    written += fixture.tokenizer->token_bytes().Of(id);
    if (!(*follower)->Accept(id).ok()) return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Fixture fixture;
  if (size == 0) return 0;
  const auto kind = static_cast<text::GrammarKind>(data[0] % 5);
  const std::string_view source = nibble::fuzz::Text(data + 1, size - 1);
  // A compiler of its own, so that one input does not leave grammars to the next.
  text::GrammarCompiler compiler(fixture.tokenizer, fixture.vocab_size, {kEnd});
  const auto grammar = compiler.Compile({kind, std::string(source)}, "field");
  ExpectClean(grammar.status(), source);
  if (!grammar.ok()) {
    Expect(nibble::base::ToStd(grammar.status().message()).starts_with("field: "), "a refusal names the field");
    return 0;
  }
  for (std::uint64_t seed = 0; seed < 3; ++seed)
    Follow(fixture, *grammar, kind == text::GrammarKind::kJsonSchema, seed, source);
  return 0;
}
