// The API server of Kubernetes over HTTPS.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/json.h"
#include "server/kube/cluster.h"

namespace nibble::kube {

enum class Method { kGet, kPost, kDelete };

struct ApiRequest {
  Method method = Method::kGet;
  std::string target;                   // path and query, percent-encoded
  std::optional<base::Json> body = {};  // sent as JSON
  // From the call of Request to the answer, including the wait for other requests, a new connection and a repetition.
  absl::Duration timeout = absl::Seconds(30);
  // The request may reach the server twice. Set it for a POST of an object with a fixed name, and for a DELETE with a
  // precondition; a GET is always repeatable. The server may have closed a kept connection; only a repeatable request
  // is then sent again, on a new connection.
  bool repeatable = false;
};

struct ApiAnswer {     // NOLINT(bugprone-exception-escape): the moves of nlohmann::json throw nothing
  int status = 0;      // of HTTP
  std::string phrase;  // of HTTP: "Not Found"
  base::Json json;     // null if the body is not JSON
  std::string text;    // the body if it is not JSON
  std::optional<absl::Duration> retry_after;
};

// OK for 2xx. Otherwise names the HTTP status and the reason and message of the API's Status object. base::Reason() is
// the API's reason ("Conflict", "Expired"); such a status is for this server, not for its clients. Codes: 401
// Unauthenticated, 403 PermissionDenied, 404 NotFound, 409 AlreadyExists or, with another reason, Aborted, 410
// OutOfRange, 422 and other 4xx InvalidArgument, 429 ResourceExhausted, all others Unavailable.
absl::Status StatusOf(const ApiAnswer& answer);

// A watch of one collection.
struct ApiWatch {
  std::string target;                           // path and query of the list, without parameters of the watch
  std::string resource_version;                 // events after this version
  absl::Duration timeout = absl::Seconds(240);  // the server ends the watch after this time; whole seconds
  std::function<void()> on_open = [] {};        // the server accepted the watch
  // `type`: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR; `object`: an object, or a Status of the API (ERROR).
  std::function<void(const std::string& type, base::Json object)> on_event;
  // Called once, unless the Watch is destroyed first. OK: the server ended the watch. Errors: those of
  // ApiClient::Request and StatusOf; Unavailable (cut); Internal (an event that cannot be read).
  std::function<void(absl::Status status, std::optional<absl::Duration> retry_after)> on_end;
};

// Sends requests and reads watches on one thread of its own. Sends at most kMaxRequests at once; the others wait in the
// order in which they were asked for. Watches do not count. All callbacks run on that thread: they must not block or
// throw. They may call every method, and may destroy a Watch, but not the client. Reads the token for each request and
// the authority's certificates for each new connection. Thread-safe.
class ApiClient {
  struct Call;  // a request or watch in progress

 public:
  // A thousand jobs that change at once must not open a thousand connections to an API server that others share.
  static constexpr std::size_t kMaxRequests = 8;

  // Errors: Unavailable (no connection, a certificate of another host or authority, a truncated answer);
  // DeadlineExceeded; Cancelled (the client is being destroyed); ResourceExhausted (an answer above 16 MiB); those of
  // ReadToken and ReadAuthority. An answer with an HTTP error is not an error here (StatusOf).
  using Done = std::function<void(absl::StatusOr<ApiAnswer>)>;

  // Destroying it ends the watch. The destructor waits for a running callback of the watch, never for the network, and
  // no callback begins afterwards. The client must outlive the Watch.
  class Watch {
   public:
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    friend class ApiClient;
    Watch(ApiClient& client, std::shared_ptr<Call> call);
    ApiClient& client_;
    const std::shared_ptr<Call> call_;
  };

  // Connects with the first request.
  explicit ApiClient(ClusterAccess access);
  // Ends all requests (Cancelled); never waits for the network. A request made by a callback meanwhile is dropped.
  ~ApiClient();
  ApiClient(const ApiClient&) = delete;
  ApiClient& operator=(const ApiClient&) = delete;

  // Calls `done` once, also if the request had to wait and was never sent.
  void Request(ApiRequest request, Done done);
  // Opens a connection of its own, kept until the watch ends.
  std::unique_ptr<Watch> StartWatch(ApiWatch watch);
  // Runs `task` on the client's thread after `delay`, unless the client is destroyed first.
  void RunAfter(absl::Duration delay, std::function<void()> task);
  // Runs `task` on the client's thread and waits for it. Runs it at once if called on that thread.
  void RunAndWait(const std::function<void()>& task);

  const ClusterAccess& access() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nibble::kube
