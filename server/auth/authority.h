// Authorization: one decision for every call on every transport. With a token file, a call is refused unless a line of
// the file or an exception of AuthPolicy allows it, or a trainer reports on a trainers' listener.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/auth/method_rules.h"
#include "server/auth/principals.h"
#include "server/base/clock.h"
#include "server/base/files.h"
#include "server/base/ids.h"
#include "server/base/log_limit.h"
#include "server/base/mutex.h"

namespace nibble::auth {

// Evidence of a caller's identity.
struct Caller {
  std::vector<std::string> authorization;  // every value of that header
  std::vector<std::string>
      certificate_names;          // "uri:spiffe://...", from a client certificate verified by the handshake
  std::string peer;               // for the log: "ipv4:127.0.0.1:1234"; before a handler runs only "local" or "unknown"
  bool trainer_listener = false;  // the call arrived on the trainers' socket or on --report_address
  // From the metadata of Forward() (auth_processor.h), for Authority::Resolve().
  std::string forward_secret{};
  std::string forward_peer{};
  std::vector<std::string> forward_names{};
};

struct AuthPolicy {
  std::shared_ptr<const PrincipalTable> principals;  // nullptr: every caller is an admin
  bool health_without_token = false;
  bool reflection_without_token = false;
};

// Pure. Errors: Unauthenticated (TOKEN_MISSING, TOKEN_INVALID), PermissionDenied (ROLE, with "needed"), Unimplemented
// (a known caller, an unknown method). No message reveals whether a token is unknown, malformed or expired.
absl::StatusOr<Principal> Decide(const AuthPolicy& policy, std::string_view path, const Caller& caller, absl::Time now);

// Checks that the caller may set this priority; `field` is its name in the request. Errors: PermissionDenied (ROLE,
// with "needed"): the priority is above 0 and the role is below operator.
absl::Status CheckPriority(const Principal& caller, const char* field, std::int64_t priority);

struct AuthorityOptions {
  std::string token_file;  // "": no authorization, every caller is an admin
  bool health_without_token = false;
  bool reflection_without_token = false;
  // Called for every refusal that has a reason, from any thread.
  std::function<void(std::string_view reason)> count_refusal = nullptr;
  absl::Duration reload = absl::Seconds(1);  // minimum time between checks for changes: by calls, and by Watch
};

// Applies Decide() with the current token file. Thread-safe.
class Authority {
 public:
  ~Authority();
  Authority(const Authority&) = delete;
  Authority& operator=(const Authority&) = delete;
  // Errors: InvalidArgument names the flag and the line.
  static absl::StatusOr<std::unique_ptr<Authority>> Open(base::FileSystem& files, base::Clock& clock,
                                                         AuthorityOptions options);

  // If the call was forwarded in this process, replaces `peer` and `certificate_names` by those of the client and
  // returns true.
  bool Resolve(Caller& caller) const;
  // Counts and logs refusals.
  absl::StatusOr<Principal> Admit(std::string_view path, const Caller& caller);
  // Reads the token file now. An unusable file is logged once and changes nothing.
  void Reload();
  // Starts a thread that also looks for changes, so that an unusable file is logged even if no call arrives.
  void Watch();
  // Whether the token file was readable and well formed when it was last read; true without --token_file.
  bool FileIsOk();
  bool wants_tokens() const { return !options_.token_file.empty(); }
  // Random for each server. Proves that a call comes from this process.
  const std::string& forward_secret() const { return forward_secret_; }

 private:
  static constexpr int kRefusalsLoggedASecond = 20;

  Authority(base::FileSystem& files, base::Clock& clock, AuthorityOptions options)
      : files_(files), clock_(clock), options_(std::move(options)) {}
  absl::Status Load() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Look() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);  // logs the error of Load()
  void LookIfDue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  AuthPolicy Current();
  void Refused(std::string_view path, const Caller& caller, const absl::Status& status);

  base::FileSystem& files_;
  base::Clock& clock_;
  const AuthorityOptions options_;
  const std::string forward_secret_ = base::NewId("forward") + base::NewId("");
  base::Mutex mutex_;
  std::string text_ ABSL_GUARDED_BY(mutex_);      // source of principals_
  std::string rejected_ ABSL_GUARDED_BY(mutex_);  // the last text that did not parse
  std::shared_ptr<const PrincipalTable> principals_ ABSL_GUARDED_BY(mutex_);
  absl::Duration next_look_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();  // monotonic
  bool unreadable_ ABSL_GUARDED_BY(mutex_) = false;
  base::LogLimit log_limit_{kRefusalsLoggedASecond};
  base::Condition ended_changed_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread watch_;
};

}  // namespace nibble::auth
