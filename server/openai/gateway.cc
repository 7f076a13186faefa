#include "server/openai/gateway.h"

#include <arpa/inet.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "server/auth/auth_processor.h"
#include "server/auth/request_owner.h"
#include "server/base/clock.h"
#include "server/base/error.h"
#include "server/base/ids.h"
#include "server/base/json.h"
#include "server/base/mutex.h"
#include "server/base/process_memory.h"
#include "server/base/queue_full.h"
#include "server/base/strings.h"
#include "server/base/utf8.h"
#include "server/openai/api_error.h"
#include "server/openai/embeddings.h"
#include "server/openai/file_upload.h"
#include "server/openai/files.h"
#include "server/openai/fine_tuning.h"
#include "server/openai/generate_exchange.h"
#include "server/openai/generate_request.h"
#include "server/openai/models.h"
#include "server/openai/responses.h"
#include "server/openai/tokens.h"

namespace nibble::openai {

namespace {

using base::StrCat;

constexpr std::size_t kLargeBody = 64 << 10;
constexpr std::size_t kMaxQuotedBytes = 200;  // of a client's text in an error
constexpr std::size_t kMaxLargeBodies = 64;
constexpr std::size_t kFormBytes = 64 << 10;    // of a form besides its file
constexpr std::size_t kMaxRequestIdBytes = 64;  // as rpc/call.cc
constexpr char kJson[] = "application/json";
constexpr std::string_view kName = "{}";  // in the path of a route
constexpr char kChatStream[] = "nibble.v1.InferenceService/ChatStream";

// Whether HOST or HOST:PORT is "localhost" or an IP address.
bool IsLocalHost(std::string host) {
  if (const std::size_t port = host.rfind(':'); port != std::string::npos && host.find(']', port) == std::string::npos)
    host.resize(port);
  if (host.starts_with('[') && host.ends_with(']'))
    return host.find_first_not_of("[]:.0123456789abcdefABCDEF") == std::string::npos;
  in_addr ignored;
  return absl::AsciiStrToLower(host) == "localhost" || ::inet_pton(AF_INET, host.c_str(), &ignored) == 1;
}

// The client's id if it is safe to log, otherwise a new one.
std::string RequestId(const http::RequestHead& head) {
  std::string id = head.Field("x-request-id");
  const bool good =
      !id.empty() && id.size() <= kMaxRequestIdBytes &&
      id.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") == std::string::npos;
  return good ? id : base::NewId("req");
}

// The name in a path of that route; "" if the route has none. nullopt: the path is of another route.
std::optional<std::string> NameIn(std::string_view route, std::string_view path) {
  const std::size_t hole = route.find(kName);
  if (hole == std::string_view::npos && !route.ends_with('/'))
    return path == route ? std::optional<std::string>("") : std::nullopt;
  const std::string_view before = route.substr(0, hole);
  const std::string_view after = hole == std::string_view::npos ? "" : route.substr(hole + kName.size());
  if (path.size() <= before.size() + after.size() || !path.starts_with(before) || !path.ends_with(after))
    return std::nullopt;
  const std::string_view name = path.substr(before.size(), path.size() - before.size() - after.size());
  if ((hole != std::string_view::npos && name.find('/') != std::string_view::npos) || !base::IsValidUtf8(name))
    return std::nullopt;
  return std::string(name);
}

}  // namespace

struct Gateway::Route {
  const char* method;
  std::string_view path;    // "{}" stands for a name without "/"; if it ends in "/", a name follows
  const char* grpc_method;  // whose role the caller needs
  void (*run)(Gateway&, std::shared_ptr<Incoming>, const base::Json& body, const std::string& name);

  bool is_form = false;  // the body is a form, which `run` reads itself

  bool has_body() const { return method == std::string_view("POST") && path.find(kName) == std::string_view::npos; }
};

struct Gateway::Alive {
  base::Mutex mutex;
  base::Condition changed;
  std::size_t count ABSL_GUARDED_BY(mutex) = 0;
};

// `act` needs only the name in the path.
template <auto act>
void Gateway::OnName(Gateway& self, std::shared_ptr<Incoming> incoming, const base::Json&, const std::string& name) {
  act(std::move(incoming), name, self.stubs_);
}

// `act` needs only the response in the path.
template <auto act>
// NOLINTNEXTLINE(performance-unnecessary-value-param): the type of a route's function
void Gateway::OnResponse(Gateway& self, std::shared_ptr<Incoming> incoming, const base::Json&,
                         const std::string& name) {
  act(*incoming, name, self.responses_);
}

const std::vector<Gateway::Route>& Gateway::Routes() {
  using Call = std::shared_ptr<Incoming>;
  static constexpr auto kGenerate = [](Gateway& self, Call incoming, absl::StatusOr<GenerateCall> call) {
    if (!call.ok()) return incoming->exchange->Answer(ToReply(FromStatus(call.status())));
    RunGenerate(std::move(incoming), *std::move(call), self.stubs_, self.options_.max_answer_bytes);
  };
  static const std::vector<Route> routes = {
      {"GET", "/v1/models", "nibble.v1.ModelService/ListModels",
       [](Gateway& self, Call incoming, const base::Json&, const std::string&) {
         ListModels(std::move(incoming), self.stubs_);
       }},
      {"GET", "/v1/models/", "nibble.v1.ModelService/GetModel",
       [](Gateway& self, Call incoming, const base::Json&, const std::string& name) {
         GetModel(std::move(incoming), name, self.stubs_);
       }},
      {"DELETE", "/v1/models/", "nibble.v1.ModelService/DeleteModel", &OnName<DeleteModel>},
      {"POST", "/v1/completions", "nibble.v1.InferenceService/GenerateStream",
       [](Gateway& self, Call incoming, const base::Json& body, const std::string&) {
         kGenerate(self, std::move(incoming), ParseCompletion(body));
       }},
      {"POST", "/v1/chat/completions", kChatStream,
       [](Gateway& self, Call incoming, const base::Json& body, const std::string&) {
         kGenerate(self, std::move(incoming), ParseChat(body));
       }},
      {"POST", "/v1/responses", kChatStream,
       [](Gateway& self, Call incoming, const base::Json& body, const std::string&) {
         self.CreateResponse(std::move(incoming), body);
       }},
      {"GET", "/v1/responses/{}", kChatStream, &OnResponse<GetResponse>},
      {"DELETE", "/v1/responses/{}", kChatStream, &OnResponse<DeleteResponse>},
      {"POST", "/v1/responses/{}/cancel", kChatStream, &OnResponse<CancelResponse>},
      {"GET", "/v1/responses/{}/input_items", kChatStream, &OnResponse<ListInputItems>},
      {"POST", "/v1/embeddings", "nibble.v1.InferenceService/Embed",
       [](Gateway& self, Call incoming, const base::Json& body, const std::string&) {
         Embed(std::move(incoming), body, self.stubs_);
       }},
      {"POST", "/v1/files", "nibble.v1.DatasetService/UploadDataset",
       [](Gateway& self, Call incoming, const base::Json&, const std::string&) {
         UploadFile(std::move(incoming), self.stubs_);
       },
       /*is_form=*/true},
      {"GET", "/v1/files", "nibble.v1.DatasetService/ListDatasets",
       [](Gateway& self, Call incoming, const base::Json&, const std::string&) {
         ListFiles(std::move(incoming), self.stubs_);
       }},
      {"GET", "/v1/files/{}", "nibble.v1.DatasetService/GetDataset", &OnName<GetFile>},
      {"GET", "/v1/files/{}/content", "nibble.v1.DatasetService/DownloadDataset", &OnName<GetFileContent>},
      {"DELETE", "/v1/files/{}", "nibble.v1.DatasetService/DeleteDataset", &OnName<DeleteFile>},
      {"POST", "/v1/fine_tuning/jobs", "nibble.v1.FineTuneService/CreateJob",
       [](Gateway& self, Call incoming, const base::Json& body, const std::string&) {
         CreateFineTuningJob(std::move(incoming), body, self.stubs_);
       }},
      {"GET", "/v1/fine_tuning/jobs", "nibble.v1.FineTuneService/ListJobs",
       [](Gateway& self, Call incoming, const base::Json&, const std::string&) {
         ListFineTuningJobs(std::move(incoming), self.stubs_);
       }},
      {"GET", "/v1/fine_tuning/jobs/{}", "nibble.v1.FineTuneService/GetJob", &OnName<GetFineTuningJob>},
      {"POST", "/v1/fine_tuning/jobs/{}/cancel", "nibble.v1.FineTuneService/CancelJob", &OnName<CancelFineTuningJob>},
      {"POST", "/v1/fine_tuning/jobs/{}/pause", "nibble.v1.FineTuneService/PauseJob", &OnName<PauseFineTuningJob>},
      {"POST", "/v1/fine_tuning/jobs/{}/resume", "nibble.v1.FineTuneService/ResumeJob", &OnName<ResumeFineTuningJob>},
      {"GET", "/v1/fine_tuning/jobs/{}/events", "nibble.v1.FineTuneService/ListJobEvents",
       &OnName<ListFineTuningEvents>},
      {"GET", "/v1/fine_tuning/jobs/{}/checkpoints", "nibble.v1.FineTuneService/ListCheckpoints",
       &OnName<ListFineTuningCheckpoints>},
      {"POST", "/tokenize", "nibble.v1.InferenceService/Tokenize",
       [](Gateway& self, Call incoming, const base::Json& body, const std::string&) {
         Tokenize(std::move(incoming), body, self.stubs_);
       }},
      {"POST", "/detokenize", "nibble.v1.InferenceService/Detokenize",
       [](Gateway& self, Call incoming, const base::Json& body, const std::string&) {
         Detokenize(std::move(incoming), body, self.stubs_);
       }},
      {"GET", "/tokenizer_info", "nibble.v1.InferenceService/GetTokenizerConfig",
       [](Gateway& self, Call incoming, const base::Json&, const std::string&) {
         TokenizerInfo(std::move(incoming), self.stubs_);
       }},
  };
  return routes;
}

Gateway::Gateway(const std::shared_ptr<grpc::Channel>& channel, auth::Authority& authority, GatewayOptions options)
    : stubs_(channel),
      authority_(authority),
      options_(std::move(options)),
      responses_(options_.responses, base::RealClock()),
      alive_(std::make_unique<Alive>()),
      parsers_(/*num_threads=*/1, /*max_waiting=*/kMaxLargeBodies) {
  options_.count_requests(LabelOf(nullptr), 0);
  for (const Route& route : Routes()) options_.count_requests(LabelOf(&route), 0);
}

std::string Gateway::LabelOf(const Route* route) {
  if (route == nullptr) return "unknown";
  return StrCat(route->path, route->path.ends_with('/') ? "{}" : "");
}

Gateway::~Gateway() {
  parsers_.AwaitIdle();
  base::MutexLock lock(alive_->mutex);
  alive_->changed.Wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(alive_->mutex) { return alive_->count == 0; });
}

const Gateway::Route* Gateway::Find(const http::RequestHead& head, bool* path_known) {
  for (const Route& route : Routes()) {
    if (!NameIn(route.path, head.path).has_value()) continue;
    *path_known = true;
    if (head.method == route.method) return &route;
  }
  return nullptr;
}

std::string Gateway::AllowedMethods(std::string_view path) {
  std::string methods;
  for (const Route& route : Routes()) {
    if (NameIn(route.path, path).has_value()) methods += StrCat(methods.empty() ? "" : ", ", route.method);
  }
  return methods;
}

http::Fields Gateway::CorsFields(const http::RequestHead& head) const {
  const std::string origin = head.Field("origin");
  const auto allowed = [&](const std::string& one) { return one == "*" || one == origin; };
  if (origin.empty() || std::none_of(options_.cors_origins.begin(), options_.cors_origins.end(), allowed)) return {};
  return {{"Access-Control-Allow-Origin", origin},
          {"Vary", "Origin"},
          {"Access-Control-Expose-Headers", "x-request-id, retry-after-ms, x-should-retry"}};
}

std::optional<http::Reply> Gateway::Admit(http::RequestHead& head) {
  head.request_id = RequestId(head);
  head.answer_fields = CorsFields(head);
  const bool cors = !head.answer_fields.empty();
  head.answer_fields.emplace_back("x-request-id", head.request_id);
  bool path_known = false;
  const Route* route = Find(head, &path_known);
  options_.count_requests(LabelOf(route), 1);
  if (options_.local_host_only && !IsLocalHost(head.Field("host"))) {
    return Refusal(head, 403,
                   StrCat("Host: is \"", head.Field("host").substr(0, kMaxQuotedBytes),
                          "\", wanted localhost or an IP address, because this server has no tokens"));
  }
  if (cors && path_known && head.method == "OPTIONS") {  // a browser asks before the request of a web page
    return http::Reply{.status = 204,
                       .fields = {{"Access-Control-Allow-Methods", "GET, POST, DELETE"},
                                  {"Access-Control-Allow-Headers",
                                   "authorization, content-type, x-request-id, idempotency-key, "
                                   "x-stainless-*"},
                                  {"Access-Control-Max-Age", "600"}}};
  }
  if (route == nullptr) {
    const std::string asked = StrCat(head.method, " ", head.path.substr(0, kMaxQuotedBytes));
    if (!path_known) return Refusal(head, 404, StrCat(asked, " is not an endpoint of this server"));
    http::Reply reply = Refusal(head, 405, StrCat(asked, " is not allowed"));
    reply.fields.emplace_back("Allow", AllowedMethods(head.path));
    return reply;
  }
  const auth::Caller caller = CallerOf(head);
  if (!std::all_of(caller.authorization.begin(), caller.authorization.end(), auth::IsPrintableAscii)) {
    return ToReply(FromStatus(base::WithReason(
        absl::UnauthenticatedError("Authorization: has bytes that are not printable ASCII"), "TOKEN_INVALID")));
  }
  const auto principal = authority_.Admit(route->grpc_method, caller);
  if (!principal.ok()) return ToReply(FromStatus(principal.status()));
  head.fairness_key = auth::FairnessKey(*principal);
  if (route->is_form) {
    // A web page may send a form without asking first (CORS).
    if (!head.Field("origin").empty() && !cors)
      return Refusal(head, 403,
                     StrCat("Origin: is \"", head.Field("origin").substr(0, kMaxQuotedBytes),
                            "\", wanted one of --openai_cors_origins"));
    head.streamed_body_bytes = options_.max_file_bytes + kFormBytes;
    return std::nullopt;
  }
  // A web page cannot send this type without asking first (CORS).
  const std::string type = absl::AsciiStrToLower(head.Field("content-type"));
  const bool no_page = !route->has_body() && type.empty() && head.Field("origin").empty();
  if (head.method == std::string("POST") && !no_page && type != kJson && !absl::StartsWith(type, StrCat(kJson, ";")))
    return Refusal(head, 415, StrCat("Content-Type: is \"", type, "\", wanted ", kJson));
  return std::nullopt;
}

void Gateway::Handle(const std::shared_ptr<http::Exchange>& exchange) {
  bool path_known = false;
  const Route* route = Find(exchange->head(), &path_known);
  {
    base::MutexLock lock(alive_->mutex);
    ++alive_->count;
  }
  std::shared_ptr<const void> alive(alive_.get(), [alive = alive_.get()](const void*) {
    base::MutexLock lock(alive->mutex);
    --alive->count;
    alive->changed.NotifyAll();  // with the lock: afterwards the gateway may be gone
  });
  auto incoming = std::make_shared<Incoming>(
      Incoming{exchange, ClientIdentity(exchange->head(), authority_.forward_secret()), std::move(alive)});
  if (route->is_form) return route->run(*this, std::move(incoming), base::Json(), "");
  auto body = std::make_shared<const std::string>(exchange->TakeBody());
  if (body->size() <= kLargeBody) return Run(*route, std::move(incoming), *body);
  RunOnParser(exchange, [this, route, incoming, body] { Run(*route, incoming, *body); });
}

void Gateway::RunOnParser(const std::shared_ptr<http::Exchange>& exchange, std::function<void()> task) {
  const std::string& principal = exchange->head().fairness_key;
  const absl::Time came = absl::Now();
  const bool accepted = parsers_.TryRun(
      [this, task = std::move(task), came]() mutable {
        parsers_.NoteWait(absl::Now() - came);
        std::exchange(task, nullptr)();
        base::ReturnFreeMemory();  // the allocator would keep the memory of a large body
      },
      principal);
  if (!accepted) exchange->Answer(ToReply(FromStatus(base::TooManyWait(parsers_, principal))));
}

void Gateway::CreateResponse(std::shared_ptr<Incoming> incoming, const base::Json& body) {
  const auto exchange = incoming->exchange;
  auto prepared = PrepareResponse(body, exchange->head().fairness_key, responses_, options_.max_conversation_bytes);
  if (!prepared.ok()) return exchange->Answer(ToReply(FromStatus(prepared.status())));
  const auto shared = std::make_shared<PreparedResponse>(*std::move(prepared));
  const auto run = [this, incoming = std::move(incoming), shared] {
    RunResponse(incoming, std::move(*shared), responses_, stubs_, options_.max_answer_bytes);
  };
  if (shared->conversation_bytes <= kLargeBody) return run();
  RunOnParser(exchange, run);
}

void Gateway::Run(const Route& route, std::shared_ptr<Incoming> incoming, const std::string& body) {
  const std::string name = NameIn(route.path, incoming->exchange->head().path).value_or("");
  if (body.empty() && !route.has_body()) return route.run(*this, std::move(incoming), base::Json::object(), name);
  const auto json = base::ParseJson(body);
  if (json.ok()) return route.run(*this, std::move(incoming), *json, name);
  ApiError error = FromStatus(json.status());
  error.message = StrCat("the body is not JSON: ", error.message);
  error.code = "invalid_json";
  incoming->exchange->Answer(ToReply(error));
}

http::Reply Gateway::Refusal(const http::RequestHead&, unsigned status, std::string_view why) {
  if (status == 429) {
    ApiError full = FromStatus(base::WithReason(absl::ResourceExhaustedError(std::string(why)), "QUEUE_FULL"));
    full.retry = true;
    return ToReply(full);
  }
  ApiError error{.status = status,
                 .type = status >= 500 ? "service_unavailable_error" : "invalid_request_error",
                 .message = std::string(why),
                 .retry = status == 503};
  if (status == 404) error.code = "unknown_url";
  return ToReply(error);
}

void Gateway::Answered(const http::RequestHead& head, unsigned status) {
  bool path_known = false;
  options_.count_answer(LabelOf(Find(head, &path_known)), status);
}

}  // namespace nibble::openai
