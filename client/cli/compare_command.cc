#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "client/cli/app.h"
#include "client/cli/columns.h"
#include "client/cli/command.h"
#include "client/cli/message_json.h"
#include "client/cli/prompt_file.h"
#include "client/cli/render.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::cli {
namespace {

constexpr int kMinWidth = 20, kMaxWidth = 1000;
constexpr int kUnknownWidth = 100;  // if the output is not a terminal

struct CompareOptions {
  std::string a, b, prompts;
  std::optional<std::int32_t> max_tokens;
  std::optional<double> temperature;
  std::optional<std::int64_t> seed;
  std::optional<int> width;
};

absl::StatusOr<v1::GenerateResponse> Answer(Session& session, const CompareOptions& options, const std::string& model,
                                            v1::GenerateRequest request) {
  request.set_model(model);
  if (options.max_tokens.has_value()) request.mutable_stopping()->set_max_tokens(*options.max_tokens);
  if (options.temperature.has_value()) request.mutable_sampling()->set_temperature(*options.temperature);
  if (options.seed.has_value()) request.mutable_sampling()->set_seed(*options.seed);
  return WholeAnswer(session, request, request.has_chat());
}

// The prompt in one line: its text, or the last message.
std::string Heading(const Prompt& prompt, bool equal, std::size_t width) {
  const v1::GenerateRequest& request = prompt.request;
  std::string text =
      request.has_chat() ? request.chat().messages(request.chat().messages_size() - 1).content() : request.text();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return Wrap(base::StrCat("--- line ", prompt.line, equal ? " (equal): " : ": ", text), width).front();
}

base::Json CompareJson(const Prompt& prompt, const v1::GenerateResponse& a, const v1::GenerateResponse& b, bool equal) {
  base::Json json;
  json["line"] = prompt.line;
  if (prompt.request.has_chat()) {
    json["messages"] = ToJson(prompt.request.chat())["messages"];
  } else {
    json["prompt"] = prompt.request.text();
  }
  json["equal"] = equal;
  json["a"] = GenerateJson(a, /*logprobs=*/false);
  json["b"] = GenerateJson(b, /*logprobs=*/false);
  return json;
}

absl::Status Compare(Session& session, const CompareOptions& options) {
  NIBBLE_RETURN_IF_ERROR(CheckText("model", options.a));
  NIBBLE_RETURN_IF_ERROR(CheckText("model", options.b));
  NIBBLE_ASSIGN_OR_RETURN(const PromptFile prompts, PromptFile::Open(options.prompts));
  const int shown = session.terminal.out_columns > 0 ? session.terminal.out_columns : kUnknownWidth;
  const auto width = static_cast<std::size_t>(options.width.value_or(std::max(shown, kMinWidth)));
  std::int64_t num_prompts = 0, num_equal = 0;
  NIBBLE_RETURN_IF_ERROR(prompts.ForEach([&](const Prompt& prompt) -> absl::Status {
    NIBBLE_ASSIGN_OR_RETURN(const v1::GenerateResponse a, Answer(session, options, options.a, prompt.request));
    NIBBLE_ASSIGN_OR_RETURN(const v1::GenerateResponse b, Answer(session, options, options.b, prompt.request));
    const bool equal = a.outputs(0).text() == b.outputs(0).text();
    ++num_prompts;
    num_equal += equal ? 1 : 0;
    if (session.json) {
      session.Print(CompareJson(prompt, a, b, equal));
    } else {
      session.out() << Heading(prompt, equal, width) << '\n';
      PrintBoth(session.out(), {options.a, a.outputs(0).text()}, {options.b, b.outputs(0).text()}, width);
      session.out() << '\n' << std::flush;
    }
    return session.out() ? absl::OkStatus() : absl::CancelledError("the output was closed");
  }));
  if (!session.json) {
    session.out() << num_prompts << (num_prompts == 1 ? " prompt, " : " prompts, ") << num_equal
                  << " with equal answers\n";
  }
  return absl::OkStatus();
}

}  // namespace

void AddCompareCommand(CLI::App& models, Session& session) {
  CLI::App* sub = models.add_subcommand("compare", "Show the answers of two models to the same prompts side by side");
  auto o = std::make_shared<CompareOptions>();
  sub->add_option("A", o->a, "Model or adapter")->required();
  sub->add_option("B", o->b, "Model or adapter")->required();
  sub->add_option("--prompts", o->prompts,
                  "File of JSON lines with \"prompt\" or \"messages\", or of plain text with one prompt per line")
      ->required();
  sub->add_option("--max-tokens", o->max_tokens, "Maximum number of tokens per answer (default 128)");
  sub->add_option("--temperature", o->temperature, "Sampling temperature; 0: greedy (default 0)");
  sub->add_option("--seed", o->seed, "Sampling seed, the same for every answer")->check(WholeNumber);
  sub->add_option("--width", o->width, "Width of the output in characters (default: the terminal's, else 100)")
      ->check(CLI::Range(kMinWidth, kMaxWidth));
  sub->callback([&session, o] { session.command = [&session, o] { return Compare(session, *o); }; });
}

}  // namespace nibble::cli
