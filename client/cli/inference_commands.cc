#include <CLI/CLI.hpp>
#include <istream>
#include <memory>
#include <optional>

#include "client/cli/app.h"
#include "client/cli/command.h"
#include "client/cli/message_json.h"
#include "client/cli/render.h"
#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::cli {
namespace {

using v1::InferenceService;

constexpr int kChatMaxTokens = 256;  // default of chat --max-tokens

struct GenerateOptions {
  std::string model;
  std::optional<std::string> prompt, prompt_file, message, system;
  std::optional<std::int32_t> max_tokens, logprobs, top_k;
  std::optional<double> temperature, top_p, min_p;
  std::vector<std::string> stop, choice;
  std::optional<std::string> json_schema_file, regex, grammar_file;
  std::optional<std::int64_t> seed;
  bool ignore_eos = false;
};

// The text of one of two options; exactly one option is set.
absl::StatusOr<std::string> TextOf(std::string_view field, const std::optional<std::string>& text,
                                   const std::optional<std::string>& file) {
  if (file.has_value()) return ReadText(field, *file);
  NIBBLE_RETURN_IF_ERROR(CheckText(field, *text));
  return *text;
}

// At most one of the options is set.
absl::Status SetConstraint(const GenerateOptions& options, v1::GenerateRequest& request) {
  if (options.json_schema_file.has_value()) {
    NIBBLE_ASSIGN_OR_RETURN(*request.mutable_json_schema(), ReadText("json-schema", *options.json_schema_file));
  }
  if (options.grammar_file.has_value()) {
    NIBBLE_ASSIGN_OR_RETURN(*request.mutable_lark(), ReadText("grammar", *options.grammar_file));
  }
  if (options.regex.has_value()) {
    NIBBLE_RETURN_IF_ERROR(CheckText("regex", *options.regex));
    request.set_regex(*options.regex);
  }
  for (const std::string& choice : options.choice) {
    NIBBLE_RETURN_IF_ERROR(CheckText("choice", choice));
    request.mutable_choice()->add_choices(choice);
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::GenerateRequest> BaseRequest(const GenerateOptions& options) {
  NIBBLE_RETURN_IF_ERROR(CheckText("model", options.model));
  v1::GenerateRequest request;
  request.set_model(options.model);
  if (options.max_tokens.has_value()) request.mutable_stopping()->set_max_tokens(*options.max_tokens);
  if (options.ignore_eos) request.mutable_stopping()->set_ignore_eos(true);
  if (options.temperature.has_value()) request.mutable_sampling()->set_temperature(*options.temperature);
  if (options.top_k.has_value()) request.mutable_sampling()->set_top_k(*options.top_k);
  if (options.top_p.has_value()) request.mutable_sampling()->set_top_p(*options.top_p);
  if (options.min_p.has_value()) request.mutable_sampling()->set_min_p(*options.min_p);
  for (const std::string& stop : options.stop) {
    NIBBLE_RETURN_IF_ERROR(CheckText("stop", stop));
    request.mutable_stopping()->add_stop(stop);
  }
  if (options.seed.has_value()) request.mutable_sampling()->set_seed(*options.seed);
  if (options.logprobs.has_value()) request.mutable_output()->set_logprobs(*options.logprobs);
  NIBBLE_RETURN_IF_ERROR(SetConstraint(options, request));
  return request;
}

absl::Status CheckAnswer(const v1::GenerateResponse& response, bool logprobs) {
  if (response.outputs_size() != 1 || !response.outputs(0).has_finish() || !response.has_usage()) {
    return absl::DataLossError("malformed response: wanted one finished output and its usage");
  }
  if (logprobs && response.outputs(0).logprobs_size() != response.outputs(0).token_ids_size()) {
    return absl::DataLossError("malformed response: number of logprobs and tokens differ");
  }
  return absl::OkStatus();
}

// Streams the text to stdout, then prints the logprobs to stderr. Returns the text.
absl::StatusOr<std::string> Stream(Session& session, const v1::GenerateRequest& request, bool chat) {
  std::string text;
  google::protobuf::RepeatedPtrField<v1::TokenLogprob> logprobs;
  v1::Usage usage;
  NIBBLE_RETURN_IF_ERROR(session.client().GenerateStream(request, chat, [&](const v1::GenerateReply& reply) {
    if (reply.has_delta()) {
      text += reply.delta().text();
      // A terminal must not receive control characters; a pipe gets the text unchanged.
      session.out() << (session.terminal.out_is_tty ? Printable(reply.delta().text()) : reply.delta().text())
                    << std::flush;
      logprobs.MergeFrom(reply.delta().logprobs());
    } else if (reply.has_usage()) {
      usage = reply.usage();
    }
    return session.out() ? absl::OkStatus() : absl::CancelledError("the output was closed");
  }));
  session.out() << '\n' << std::flush;
  if (!logprobs.empty()) LogprobTable(logprobs).Print(session.terminal.err);  // stdout has only the text
  if (session.terminal.err_is_tty) {
    const int decoded = usage.completion_tokens() - 1;
    session.terminal.err << "[" << usage.prompt_tokens() << " prompt + " << usage.completion_tokens()
                         << " completion tokens, first after " << HumanNumber(usage.ttft_ms(), 4) << " ms";
    if (decoded > 0 && usage.decode_ms() > 0) {
      session.terminal.err << ", then " << HumanNumber(decoded * 1e3 / usage.decode_ms(), 4) << " tokens/s";
    }
    session.terminal.err << "]\n";
  }
  return text;
}

// With logprobs the answer is streamed, because it may exceed the limit of one message.
absl::StatusOr<v1::GenerateResponse> UncheckedAnswer(Session& session, const v1::GenerateRequest& request, bool chat) {
  if (!request.output().has_logprobs()) {
    if (!chat) return session.client().LongCall(&InferenceService::Stub::Generate, request);
    v1::ChatRequest message;
    *message.mutable_request() = request;
    return session.client().LongCall(&InferenceService::Stub::Chat, message);
  }
  v1::GenerateResponse whole;
  v1::GenerateOutput& output = *whole.add_outputs();
  NIBBLE_RETURN_IF_ERROR(session.client().GenerateStream(request, chat, [&](const v1::GenerateReply& reply) {
    if (reply.has_start()) *whole.mutable_start() = reply.start();
    output.mutable_text()->append(reply.delta().text());
    output.mutable_token_ids()->MergeFrom(reply.delta().token_ids());
    output.mutable_logprobs()->MergeFrom(reply.delta().logprobs());
    if (reply.has_finish()) *output.mutable_finish() = reply.finish();
    if (reply.has_usage()) *whole.mutable_usage() = reply.usage();
    return absl::OkStatus();
  }));
  return whole;
}

absl::Status Generate(Session& session, const GenerateOptions& options) {
  NIBBLE_ASSIGN_OR_RETURN(v1::GenerateRequest request, BaseRequest(options));
  NIBBLE_ASSIGN_OR_RETURN(*request.mutable_text(), TextOf("prompt", options.prompt, options.prompt_file));
  if (!session.json) return Stream(session, request, /*chat=*/false).status();
  NIBBLE_ASSIGN_OR_RETURN(const auto response, WholeAnswer(session, request, /*chat=*/false));
  session.Print(GenerateJson(response, options.logprobs.has_value()));
  return absl::OkStatus();
}

void AddMessage(v1::GenerateRequest& request, const char* role, const std::string& content) {
  v1::ChatMessage& message = *request.mutable_chat()->add_messages();
  message.set_role(role);
  message.set_content(content);
}

// A chat renders every message with the model's chat template. A model that was trained on rows of text, or of prompt
// and completion, has not seen this template in training.
absl::Status WarnIfTrainedWithoutTemplate(Session& session, const std::string& name) {
  v1::GetModelRequest request;
  request.set_name(name);
  const auto model = session.client().Call(&v1::ModelService::Stub::GetModel, request);
  // These errors end the command, because the chat would wait for the same server again. Other errors are ignored: the
  // chat reports those that affect it.
  if (absl::IsUnavailable(model.status()) || absl::IsDeadlineExceeded(model.status())) return model.status();
  if (!model.ok() || !model->has_chat_template()) return absl::OkStatus();
  const v1::DatasetFormat format = model->trained_format();
  if (format != v1::DATASET_FORMAT_TEXT && format != v1::DATASET_FORMAT_PROMPT_COMPLETION) return absl::OkStatus();
  const std::string warning =
      base::StrCat("warning: ", name, " was trained on ", Lower(format),
                   " rows, without the chat template that chat uses; its answers may be worse than those of "
                   "`nibble generate`");
  session.terminal.err << Printable(warning) << '\n' << std::flush;
  return absl::OkStatus();
}

absl::Status Chat(Session& session, const GenerateOptions& options) {
  NIBBLE_ASSIGN_OR_RETURN(v1::GenerateRequest request, BaseRequest(options));
  if (!options.max_tokens.has_value()) request.mutable_stopping()->set_max_tokens(kChatMaxTokens);
  if (options.system.has_value()) {
    NIBBLE_RETURN_IF_ERROR(CheckText("system", *options.system));
    AddMessage(request, "system", *options.system);
  }
  if (options.message.has_value()) {
    NIBBLE_RETURN_IF_ERROR(CheckText("message", *options.message));
    AddMessage(request, "user", *options.message);
    NIBBLE_RETURN_IF_ERROR(WarnIfTrainedWithoutTemplate(session, options.model));
    if (!session.json) return Stream(session, request, /*chat=*/true).status();
    NIBBLE_ASSIGN_OR_RETURN(const auto response, WholeAnswer(session, request, /*chat=*/true));
    session.Print(GenerateJson(response, options.logprobs.has_value()));
    return absl::OkStatus();
  }
  if (session.json) return base::FieldError("message", "--json needs --message");
  NIBBLE_RETURN_IF_ERROR(WarnIfTrainedWithoutTemplate(session, options.model));
  if (session.terminal.in_is_tty) session.terminal.err << "An empty line or end of input ends the conversation.\n";
  std::string line;
  while (true) {
    if (session.terminal.in_is_tty) session.terminal.err << "> " << std::flush;
    if (!std::getline(session.terminal.in, line) || line.empty()) return absl::OkStatus();
    NIBBLE_RETURN_IF_ERROR(CheckText("message", line));
    AddMessage(request, "user", line);
    NIBBLE_ASSIGN_OR_RETURN(const std::string answer, Stream(session, request, /*chat=*/true));
    AddMessage(request, "assistant", answer);
  }
}

struct ScoreOptions {
  std::string model;
  std::optional<std::string> text, file;
  std::vector<std::int32_t> token_ids;
  std::int32_t top = 1;
  bool digests = false;
};

absl::Status Score(Session& session, const ScoreOptions& options) {
  NIBBLE_RETURN_IF_ERROR(CheckText("model", options.model));
  v1::ScoreRequest request;
  request.set_model(options.model);
  if (options.token_ids.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(*request.mutable_text(), TextOf("text", options.text, options.file));
  } else {
    request.mutable_token_ids()->mutable_ids()->Assign(options.token_ids.begin(), options.token_ids.end());
  }
  request.set_top_n(options.top);
  if (options.digests) request.set_logits_digests(true);
  NIBBLE_ASSIGN_OR_RETURN(const auto score, session.client().ScoreStream(request));
  for (int i = 0; i < score.tokens_size(); ++i) {
    if (score.tokens(i).has_logprob() != (i > 0)) {
      return absl::DataLossError("malformed response: wanted a logprob for every token except the first");
    }
  }
  if (session.json) {
    session.Print(ScoreJson(score));
    return absl::OkStatus();
  }
  LogprobTable(score.tokens()).Print(session.out());
  session.out() << score.tokens_size() << " tokens, mean loss " << HumanNumber(score.mean_loss(), 6) << ", perplexity "
                << HumanNumber(score.perplexity(), 6) << '\n';
  return absl::OkStatus();
}

absl::Status Tokenize(Session& session, const std::string& model, const std::string& text) {
  NIBBLE_RETURN_IF_ERROR(CheckText("model", model));
  NIBBLE_RETURN_IF_ERROR(CheckText("text", text));
  v1::TokenizeRequest request;
  request.set_model(model);
  request.set_text(text);
  NIBBLE_ASSIGN_OR_RETURN(const auto answer, session.client().LongCall(&InferenceService::Stub::Tokenize, request));
  if (answer.tokens_size() != 0 && answer.tokens_size() != answer.token_ids_size()) {
    return absl::DataLossError("malformed response: number of tokens and ids differ");
  }
  if (session.json) {
    base::Json json;
    json["token_ids"] = base::Json(std::vector<std::int32_t>(answer.token_ids().begin(), answer.token_ids().end()));
    json["tokens"] = base::Json(std::vector<std::string>(answer.tokens().begin(), answer.tokens().end()));
    session.Print(json);
    return absl::OkStatus();
  }
  for (int i = 0; i < answer.token_ids_size(); ++i) {
    session.out() << answer.token_ids(i) << '\t' << (i < answer.tokens_size() ? Printable(answer.tokens(i)) : "")
                  << '\n';
  }
  return absl::OkStatus();
}

void AddSampling(CLI::App& sub, GenerateOptions& options, const char* max_tokens_help) {
  sub.add_option("MODEL", options.model, "Model or adapter")->required();
  sub.add_option("--max-tokens", options.max_tokens, max_tokens_help);
  sub.add_option("--temperature", options.temperature, "Sampling temperature; 0: greedy (default 0)");
  sub.add_option("--top-k", options.top_k, "Sample only from the k most likely tokens (default: all)");
  sub.add_option("--top-p", options.top_p,
                 "Sample only from the most likely tokens whose probabilities sum to this (default 1)");
  sub.add_option("--min-p", options.min_p,
                 "Sample only from tokens with at least this fraction of the highest probability (default 0)");
  sub.add_option("--stop", options.stop, "Text that ends the answer; repeatable");
  sub.add_option("--seed", options.seed, "Sampling seed")->check(WholeNumber);
  sub.add_option("--logprobs", options.logprobs,
                 "Add log-probabilities, with this many alternatives per token; --json encodes token bytes in base64");
  sub.add_flag("--ignore-eos", options.ignore_eos, "Continue after the end-of-sequence token");
  CLI::Option_group* constraint = sub.add_option_group("constraint");
  constraint->add_option("--json-schema", options.json_schema_file,
                         "File with a JSON schema that the answer matches; -: standard input");
  constraint->add_option("--regex", options.regex, "Regular expression that the whole answer matches");
  constraint->add_option("--choice", options.choice, "Text that the answer may be; repeatable")
      ->allow_extra_args(false);
  constraint->add_option("--grammar", options.grammar_file,
                         "File with a grammar in llguidance's dialect of Lark; -: standard input");
  constraint->require_option(0, 1);
}

}  // namespace

absl::StatusOr<v1::GenerateResponse> WholeAnswer(Session& session, const v1::GenerateRequest& request, bool chat) {
  NIBBLE_ASSIGN_OR_RETURN(v1::GenerateResponse response, UncheckedAnswer(session, request, chat));
  NIBBLE_RETURN_IF_ERROR(CheckAnswer(response, request.output().has_logprobs()));
  return response;
}

void AddInferenceCommands(CLI::App& app, Session& session) {
  {
    CLI::App* sub = app.add_subcommand("generate", "Complete a text");
    auto o = std::make_shared<GenerateOptions>();
    AddSampling(*sub, *o, "Maximum number of tokens (default 128)");
    CLI::Option_group* input = sub->add_option_group("input");
    input->add_option("--prompt", o->prompt, "Prompt text");
    input->add_option("--prompt-file", o->prompt_file, "File with the prompt text");
    input->require_option(1);
    sub->callback([&session, o] { session.command = [&session, o] { return Generate(session, *o); }; });
  }
  {
    CLI::App* sub = app.add_subcommand("chat", "Chat with a model; without --message, each input line is one message");
    auto o = std::make_shared<GenerateOptions>();
    AddSampling(*sub, *o, "Maximum number of tokens (default 256)");
    sub->add_option("--message", o->message, "Send one message instead of reading a conversation");
    sub->add_option("--system", o->system, "System message, sent before the first message");
    sub->callback([&session, o] { session.command = [&session, o] { return Chat(session, *o); }; });
  }
  {
    CLI::App* sub = app.add_subcommand("score", "Print the log-probability of every token of a text");
    auto o = std::make_shared<ScoreOptions>();
    sub->add_option("MODEL", o->model, "Model or adapter")->required();
    CLI::Option_group* input = sub->add_option_group("input");
    input->add_option("--text", o->text, "Text");
    input->add_option("--file", o->file, "File with the text");
    input->add_option("--token-ids", o->token_ids, "Token ids instead of a text, for example 1,2,3")->delimiter(',');
    input->require_option(1);
    sub->add_option("--top", o->top, "Number of alternatives per token")->capture_default_str();
    sub->add_flag("--digests", o->digests, "Add the SHA-256 of each row of logits to the --json output");
    sub->callback([&session, o] { session.command = [&session, o] { return Score(session, *o); }; });
  }
  {
    CLI::App* sub = app.add_subcommand("tokenize", "Print the token ids of a text");
    struct Options {
      std::string model, text;
    };
    auto o = std::make_shared<Options>();
    sub->add_option("MODEL", o->model, "Model")->required();
    sub->add_option("--text", o->text, "Text")->required();
    sub->callback([&session, o] { session.command = [&session, o] { return Tokenize(session, o->model, o->text); }; });
  }
}

}  // namespace nibble::cli
