// Writes random outputs that match the schemas of a file, one JSON object per line: {"schema": name, "output": text,
// "finish": "eos" | "length"}. tests/e2e/test_constrained_corpus.py validates them with another program.
//
//   constrained_outputs --schemas FILE --count N --seed S --out FILE
//
// Every allowed token is equally likely, as with random logits; the longer an output is, the likelier are tokens that
// close a string, an array or an object. Prints the time of a mask, and that of a compilation.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/base/json.h"
#include "server/model/file_names.h"
#include "server/model/weight_source.h"
#include "server/text/grammar.h"
#include "tests/support/token_bits.h"

namespace nibble::text {
namespace {

constexpr int kMaxTokens = 2000;
constexpr int kTokensUntilClosing = 100;

using Clock = std::chrono::steady_clock;

struct Times {
  std::vector<double> masks_us, compilations_ms;
};

double Microseconds(Clock::duration duration) { return std::chrono::duration<double, std::micro>(duration).count(); }

bool Closes(std::string_view bytes) { return !bytes.empty() && std::string_view("\"}]").find(bytes[0]) != bytes.npos; }

struct Output {
  std::string text;
  bool complete = false;
};

Output Draw(const std::shared_ptr<const Grammar>& grammar, const Tokenizer& tokenizer, std::int64_t vocab_size,
            std::int32_t end, const std::vector<bool>& closes, std::mt19937_64& random, Times& times) {
  Output output;
  auto follower = GrammarFollower::Start(grammar);
  if (!follower.ok()) return output;
  for (int step = 0; step < kMaxTokens; ++step) {
    const auto begin = Clock::now();
    const auto tokens = (*follower)->AllowedTokens(vocab_size);
    if (!tokens.ok()) return output;
    times.masks_us.push_back(Microseconds(Clock::now() - begin));
    const std::vector<std::int32_t> allowed = support::TokensOf(*tokens);
    std::vector<std::int32_t> closing;
    std::copy_if(allowed.begin(), allowed.end(), std::back_inserter(closing),
                 [&](std::int32_t id) { return closes[static_cast<std::size_t>(id)]; });
    const bool close = !closing.empty() && random() % kTokensUntilClosing < static_cast<std::uint64_t>(step);
    const std::vector<std::int32_t>& from = close ? closing : allowed;
    if (from.empty()) return output;
    const std::int32_t id = from[random() % from.size()];
    if (id == end) {
      output.complete = true;
      return output;
    }
    if (!(*follower)->Accept(id).ok()) return output;
    output.text += tokenizer.token_bytes().Of(id);
  }
  return output;
}

void PrintTimes(const char* what, const char* unit, std::vector<double>& values) {
  if (values.empty()) return;
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
  };
  std::printf("%zu %s: median %.1f %s, p90 %.1f, p99 %.1f, longest %.1f\n", values.size(), what, at(0.5), unit, at(0.9),
              at(0.99), values.back());
}

int Run(const std::string& schemas, int count, std::uint64_t seed, const std::string& out) {
  const auto source = model::OpenGgufModel(NIBBLE_SMOLLM2_GGUF);
  if (!source.ok()) {
    std::fprintf(stderr, "%s\n", source.status().ToString().c_str());
    return 2;
  }
  auto loaded = Tokenizer::FromJson((*source)->files().at(model::kTokenizerFile));
  if (!loaded.ok()) {
    std::fprintf(stderr, "%s\n", loaded.status().ToString().c_str());
    return 2;
  }
  const std::shared_ptr<const Tokenizer> tokenizer = *std::move(loaded);
  const std::int32_t end = tokenizer->TokenId("<|im_end|>").value_or(-1);
  const std::int64_t vocab_size = tokenizer->ids().back() + 1;
  GrammarCompiler compiler(tokenizer, vocab_size, {end});
  std::vector<bool> closes;
  for (std::int32_t id = 0; id < vocab_size; ++id)
    closes.push_back(id == end || Closes(tokenizer->token_bytes().Of(id)));
  std::ifstream file(schemas);
  const base::Json cases = base::Json::parse(file).at("cases");
  std::ofstream lines(out);
  Times times;
  int incomplete = 0;
  for (const base::Json& row : cases) {
    const auto begin = Clock::now();
    const auto grammar = compiler.Compile({GrammarKind::kJsonSchema, row.at("schema").dump()}, "schema");
    times.compilations_ms.push_back(Microseconds(Clock::now() - begin) / 1000);
    if (!grammar.ok()) {
      std::fprintf(stderr, "%s: %s\n", row.at("name").get<std::string>().c_str(), grammar.status().ToString().c_str());
      return 1;
    }
    std::mt19937_64 random(seed + std::hash<std::string>{}(row.at("name")));
    for (int i = 0; i < count; ++i) {
      const Output output = Draw(*grammar, *tokenizer, vocab_size, end, closes, random, times);
      incomplete += output.complete ? 0 : 1;
      lines << base::Json{{"schema", row.at("name")},
                          {"output", output.text},
                          {"finish", output.complete ? "eos" : "length"}}
                   .dump(-1, ' ', false, base::Json::error_handler_t::replace)
            << "\n";
    }
  }
  std::printf("%zu schemas, %d outputs each, %d of all without an end after %d tokens\n", cases.size(), count,
              incomplete, kMaxTokens);
  PrintTimes("masks", "us", times.masks_us);
  PrintTimes("compilations", "ms", times.compilations_ms);
  return lines.good() ? 0 : 1;
}

}  // namespace
}  // namespace nibble::text

// NOLINTNEXTLINE(bugprone-exception-escape): without memory, the program ends
int main(int argc, char** argv) {
  std::string schemas, out;
  int count = 0;
  std::uint64_t seed = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    if (name == "--schemas") schemas = argv[i + 1];
    if (name == "--count") count = std::atoi(argv[i + 1]);
    if (name == "--seed") seed = static_cast<std::uint64_t>(std::atoll(argv[i + 1]));
    if (name == "--out") out = argv[i + 1];
  }
  if (schemas.empty() || count < 1 || out.empty()) {
    std::fprintf(stderr, "usage: constrained_outputs --schemas FILE --count N [--seed S] --out FILE\n");
    return 2;
  }
  return nibble::text::Run(schemas, count, seed, out);
}
