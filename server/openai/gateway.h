// The endpoints of OpenAI's API. Each request becomes calls of the gRPC API in this process (docs/adr/0021), which
// brings its limits, fairness, errors and log lines.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/auth/authority.h"
#include "server/base/json.h"
#include "server/base/worker_pool.h"
#include "server/http/exchange.h"
#include "server/openai/inner_calls.h"
#include "server/openai/response_store.h"

namespace nibble::openai {

struct GatewayOptions {
  std::size_t max_answer_bytes = 16 << 20;  // of an answer that is not a stream
  std::size_t max_file_bytes = 1 << 30;     // of an uploaded file
  // Of the items of a conversation that continues earlier responses.
  std::size_t max_conversation_bytes = 4 << 20;
  ResponseStoreOptions responses{};
  std::vector<std::string> cors_origins;  // origins of web pages that may call the server; "*": all
  // Refuses requests whose Host is a name other than localhost. A web page can give its own name the address 127.0.0.1
  // (DNS rebinding) and would be of the same origin; without tokens, nothing else would stop it.
  bool local_host_only = false;
  // Called with 1 for each request whose header was read, and at the start with 0 for each route. `route`: path of the
  // endpoint, "/v1/models/{}" if a name follows; "unknown" for all other paths.
  std::function<void(std::string_view route, int requests)> count_requests = [](std::string_view, int) {};
  // Called when an answer begins; `route` as above.
  std::function<void(std::string_view route, unsigned status)> count_answer = [](std::string_view, unsigned) {};
};

// Thread-safe.
class Gateway final : public http::ExchangeHandler {
 public:
  // `channel`: to the server of this process (grpc::Server::InProcessChannel). The authority must outlive the gateway.
  Gateway(const std::shared_ptr<grpc::Channel>& channel, auth::Authority& authority, GatewayOptions options);
  ~Gateway() override;  // waits for all calls; their connections must be closed

  std::optional<http::Reply> Admit(http::RequestHead& head) override;
  void Handle(const std::shared_ptr<http::Exchange>& exchange) override;
  ResponseStore& responses() { return responses_; }
  http::Reply Refusal(const http::RequestHead& head, unsigned status, std::string_view why) override;
  void Answered(const http::RequestHead& head, unsigned status) override;

 private:
  struct Route;
  static const std::vector<Route>& Routes();
  template <auto act>
  static void OnName(Gateway& self, std::shared_ptr<Incoming> incoming, const base::Json& body,
                     const std::string& name);
  template <auto act>
  static void OnResponse(Gateway& self, std::shared_ptr<Incoming> incoming, const base::Json& body,
                         const std::string& name);
  // The route of the request; nullptr: none. *path_known: another method has a route at this path.
  static const Route* Find(const http::RequestHead& head, bool* path_known);
  void Run(const Route& route, std::shared_ptr<Incoming> incoming, const std::string& body);
  void RunOnParser(const std::shared_ptr<http::Exchange>& exchange, std::function<void()> task);
  void CreateResponse(std::shared_ptr<Incoming> incoming, const base::Json& body);
  // Label of the route; "unknown" for nullptr.
  static std::string LabelOf(const Route* route);
  static std::string AllowedMethods(std::string_view path);
  http::Fields CorsFields(const http::RequestHead& head) const;

  const Stubs stubs_;
  auth::Authority& authority_;
  const GatewayOptions options_;
  ResponseStore responses_;
  struct Alive;  // counts the requests in progress
  const std::unique_ptr<Alive> alive_;
  base::WorkerPool
      parsers_;  // of large bodies, which would delay the connections' thread. Last: its tasks use the rest
};

}  // namespace nibble::openai
