// An API server of Kubernetes for tests: HTTPS on 127.0.0.1, with the parts that server/kube uses.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "server/base/json.h"
#include "server/kube/cluster.h"

namespace nibble::testing {

enum class RequestKind { kCreate, kGet, kList, kWatch, kDelete };

// How the server fails a request.
struct ApiFault {
  enum Kind {
    kStatus,      // answers with `status`, and a Retry-After unless retry_after_s is negative
    kSilent,      // reads the request and never answers
    kHalfAnswer,  // sends a part of an answer, then closes the connection
    kGarbage,     // sends 200 and a body that is not JSON
  };
  Kind kind = kStatus;
  int status = 500;
  int retry_after_s = -1;
};

// How the server ends its watches.
enum class WatchEnd {
  kClean,      // as after timeoutSeconds
  kCut,        // closes the connection
  kCutInLine,  // sends half of an event first
  kExpired,    // sends an ERROR event with code 410 first
};

struct ApiServerRequest {
  RequestKind kind;
  std::string target, authorization;
  base::Json body;
};

// Objects as in fake_api_objects.h. A change is visible when the call that makes it returns. Thread-safe.
class FakeApiServer {
 public:
  // `names`: of the server's certificate.
  explicit FakeApiServer(const std::string& names = "IP:127.0.0.1,DNS:localhost");
  ~FakeApiServer();
  FakeApiServer(const FakeApiServer&) = delete;
  FakeApiServer& operator=(const FakeApiServer&) = delete;

  // For a client of the namespace "ml". The token file holds a token that the server accepts.
  kube::ClusterAccess access() const;
  // A CA file with which the server's certificate cannot be verified.
  static std::string OtherAuthority();
  // Accepts only `token` from now on; does not change the token file.
  void AcceptToken(const std::string& token);
  void WriteTokenFile(const std::string& token);

  void Put(base::Json object);
  // Removes an object of the namespace "ml": "pods", "jobs" or "events". False: there was none.
  bool Remove(const std::string& collection, const std::string& name);
  // Forgets the history of changes, so that every known resourceVersion has expired.
  void Forget();
  // The next `n` requests of `kind` fail.
  void Fail(int n, RequestKind kind, const ApiFault& fault);
  // Forgets faults that have not happened yet.
  void ClearFaults();
  // From now on, requests other than watches are carried out but get no answer before Release. Cannot be undone.
  void Hold();
  // Answers the first `n` held requests.
  void Release(int n);
  int num_held();

  void EndWatches(WatchEnd how);
  void SendBookmark();
  // Sends text as it is on all watches.
  void SendOnWatches(const std::string& text);
  // While away, the server closes all connections, old and new.
  void SetAway(bool away);
  // Closes all connections, but accepts new ones.
  void CutConnections();

  std::vector<ApiServerRequest> requests() const;
  int CountOf(RequestKind kind) const;
  int num_connections() const;  // accepted so far whose TLS handshake succeeded
  // Open now. A watch is open from when requests() contains its request until either side ends it.
  int num_watches() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nibble::testing
