#include "server/kube/last_exit.h"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <chrono>
#include <exception>
#include <map>

#include "absl/time/clock.h"
#include "server/base/files.h"
#include "server/base/json.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::kube {

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using base::StrCat;
using Answer = http::response<http::string_body>;

constexpr std::uint64_t kMaxTokenBytes = 64 << 10;
constexpr std::uint64_t kMaxAnswerBytes = 4 << 20;  // etcd stores objects of at most 1.5 MiB

asio::awaitable<Answer> Get(const PodAccess& access, const std::string& token, asio::ssl::context& tls) {
  const auto executor = co_await asio::this_coro::executor;
  tcp::resolver resolver(executor);
  const auto addresses = co_await resolver.async_resolve(access.host, access.port, asio::use_awaitable);
  beast::ssl_stream<beast::tcp_stream> stream(executor, tls);
  stream.set_verify_callback(asio::ssl::host_name_verification(access.host));
  co_await beast::get_lowest_layer(stream).async_connect(addresses, asio::use_awaitable);
  co_await stream.async_handshake(asio::ssl::stream_base::client, asio::use_awaitable);
  http::request<http::empty_body> request(http::verb::get,
                                          StrCat("/api/v1/namespaces/", access.name_space, "/pods/", access.pod), 11);
  request.set(http::field::host, access.host);
  request.set(http::field::accept, "application/json");
  request.set(http::field::authorization, StrCat("Bearer ", token));
  co_await http::async_write(stream, request, asio::use_awaitable);
  http::response_parser<http::string_body> parser;
  parser.body_limit(kMaxAnswerBytes);
  beast::flat_buffer buffer;
  co_await http::async_read(stream, buffer, parser, asio::use_awaitable);
  co_return parser.release();
}

absl::StatusOr<Answer> Ask(const PodAccess& access, const std::string& token) {
  asio::io_context io;
  absl::StatusOr<Answer> answer =
      absl::DeadlineExceededError(StrCat("the API server ", access.host, ":", access.port, " did not answer within ",
                                         absl::FormatDuration(access.timeout)));
  try {
    asio::ssl::context tls(asio::ssl::context::tls_client);
    tls.load_verify_file(access.ca_file);
    tls.set_verify_mode(asio::ssl::verify_peer);
    asio::co_spawn(io, Get(access, token, tls), [&](const std::exception_ptr& error, Answer got) {
      if (!error) {
        answer = std::move(got);
        return;
      }
      try {
        std::rethrow_exception(error);
      } catch (const std::exception& thrown) {
        answer = absl::UnavailableError(StrCat("the API server ", access.host, ":", access.port, ": ", thrown.what()));
      }
    });
    io.run_for(absl::ToChronoMilliseconds(access.timeout));
  } catch (const std::exception& thrown) {
    return absl::UnavailableError(StrCat(access.ca_file, ": ", thrown.what()));
  }
  return answer;
}

// Null if `json` is not an object with that field.
base::Json FieldOf(const base::Json& json, const char* name) {
  return json.is_object() ? json.value(name, base::Json()) : base::Json();
}

}  // namespace

std::optional<PodAccess> PodAccessOf(const std::vector<std::string>& environment) {
  PodAccess access;
  const std::map<std::string, std::string*> wanted = {{"KUBERNETES_SERVICE_HOST", &access.host},
                                                      {"KUBERNETES_SERVICE_PORT", &access.port},
                                                      {"NIBBLE_POD_NAMESPACE", &access.name_space},
                                                      {"NIBBLE_POD_NAME", &access.pod},
                                                      {"NIBBLE_CONTAINER_NAME", &access.container}};
  for (const std::string& entry : environment) {
    const std::size_t end = entry.find('=');
    if (end == std::string::npos) continue;
    if (const auto found = wanted.find(entry.substr(0, end)); found != wanted.end())
      *found->second = entry.substr(end + 1);
  }
  for (const auto& [name, value] : wanted) {
    if (value->empty()) return std::nullopt;
  }
  return access;
}

absl::StatusOr<std::string> LastExitReason(std::string_view pod_json, const std::string& container) {
  NIBBLE_ASSIGN_OR_RETURN(const base::Json pod, base::ParseJson(pod_json));
  const base::Json statuses = FieldOf(FieldOf(pod, "status"), "containerStatuses");
  for (const base::Json& status : statuses.is_array() ? statuses : base::Json::array()) {
    if (FieldOf(status, "name") != container) continue;
    const base::Json reason = FieldOf(FieldOf(FieldOf(status, "lastState"), "terminated"), "reason");
    return reason.is_string() ? reason.get<std::string>() : std::string();
  }
  return absl::InvalidArgumentError(StrCat("the answer is not a pod with a status of the container ", container));
}

absl::StatusOr<std::string> ReadLastExitReason(const PodAccess& access) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string token, base::RealFileSystem().Read(access.token_file, kMaxTokenBytes));
  NIBBLE_ASSIGN_OR_RETURN(const Answer answer, Ask(access, token));
  if (answer.result() != http::status::ok) {
    return absl::PermissionDeniedError(StrCat("the API server answered ", answer.result_int(), " ",
                                              std::string(answer.reason()), " for the pod ", access.name_space, "/",
                                              access.pod));
  }
  return LastExitReason(answer.body(), access.container);
}

}  // namespace nibble::kube
