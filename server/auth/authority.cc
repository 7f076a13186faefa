#include "server/auth/authority.h"

#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "server/base/constant_time.h"
#include "server/base/error.h"
#include "server/base/ids.h"
#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::auth {

namespace {

using base::StrCat;
using base::WithReason;

constexpr char kScheme[] = "Bearer ";
constexpr std::size_t kMaxLoggedBytes = 128;

absl::Status Invalid() { return WithReason(absl::UnauthenticatedError("the token is not valid"), "TOKEN_INVALID"); }

// The bearer token of the only authorization header. Invalid() if the header is malformed or repeated.
absl::StatusOr<std::string_view> TokenOf(const std::vector<std::string>& headers) {
  if (headers.size() != 1) return Invalid();
  std::string_view value = headers.front();
  if (!absl::StartsWithIgnoreCase(base::ToAbsl(value), kScheme)) return Invalid();
  value.remove_prefix(sizeof kScheme - 1);
  if (value.empty() || value.size() > kMaxTokenBytes) return Invalid();
  return value;
}

// An authorization header takes precedence: a valid certificate does not make up for a wrong token.
absl::StatusOr<Principal> Identify(const PrincipalTable& principals, const Caller& caller, absl::Time now) {
  const PrincipalEntry* entry = nullptr;
  if (!caller.authorization.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(const std::string_view token, TokenOf(caller.authorization));
    entry = principals.FindToken(token);
  } else {
    entry = principals.FindCertificate(caller.certificate_names);
    if (entry == nullptr) {
      return WithReason(absl::UnauthenticatedError("the authorization header must carry a bearer token"),
                        "TOKEN_MISSING");
    }
  }
  if (entry == nullptr || now >= entry->expires) return Invalid();
  return entry->principal;
}

}  // namespace

absl::StatusOr<Principal> Decide(const AuthPolicy& policy, std::string_view path, const Caller& caller,
                                 absl::Time now) {
  const MethodRule* rule = FindRule(path);
  const bool for_trainers = rule != nullptr && rule->access == Access::kTrainer;
  if (caller.trainer_listener) {
    if (for_trainers)
      return Principal{"trainer", Role::kViewer, ""};  // the attempt's own token follows in its first message
    return WithReason(absl::PermissionDeniedError("this listener accepts trainer reports only"), "ROLE",
                      {{"needed", "trainer"}});
  }
  if (policy.principals == nullptr) return Principal{base::kUnnamedCaller, Role::kAdmin, ""};
  if (rule != nullptr && ((rule->access == Access::kHealth && policy.health_without_token) ||
                          (rule->access == Access::kReflection && policy.reflection_without_token))) {
    return Principal{"anyone", Role::kViewer, ""};
  }
  NIBBLE_ASSIGN_OR_RETURN(Principal principal, Identify(*policy.principals, caller, now));
  if (rule == nullptr) return absl::UnimplementedError("there is no such method");
  if (for_trainers) {
    return WithReason(absl::PermissionDeniedError("this method is served on the trainers' listeners only"), "ROLE",
                      {{"needed", "trainer"}, {"principal", principal.name}});
  }
  if (principal.role < rule->role) {
    return WithReason(absl::PermissionDeniedError(
                          StrCat("requires the role ", Name(rule->role), ", the caller has ", Name(principal.role))),
                      "ROLE", {{"needed", Name(rule->role)}, {"principal", principal.name}});
  }
  return principal;
}

absl::Status CheckPriority(const Principal& caller, const char* field, std::int64_t priority) {
  if (priority <= 0 || caller.role >= Role::kOperator) return absl::OkStatus();
  return WithReason(
      absl::PermissionDeniedError(StrCat(field, ": is ", priority, ", the role ", Name(caller.role),
                                         " may set at most 0; above 0 requires the role ", Name(Role::kOperator))),
      "ROLE", {{"needed", Name(Role::kOperator)}, {"principal", caller.name}});
}

absl::StatusOr<std::unique_ptr<Authority>> Authority::Open(base::FileSystem& files, base::Clock& clock,
                                                           AuthorityOptions options) {
  std::unique_ptr<Authority> authority(new Authority(files, clock, std::move(options)));
  if (!authority->wants_tokens()) return authority;
  base::MutexLock lock(authority->mutex_);
  if (const absl::Status status = authority->Load(); !status.ok()) {
    return absl::InvalidArgumentError(StrCat("--token_file: ", status.message()));
  }
  if (authority->principals_->size() == 0) return absl::InvalidArgumentError("--token_file: contains no principal");
  return authority;
}

absl::Status Authority::Load() {
  absl::StatusOr<std::string> read = files_.Read(options_.token_file, kMaxTokenFileBytes);
  unreadable_ = !read.ok();
  if (!read.ok()) return read.status();
  std::string text = *std::move(read);
  if (principals_ != nullptr && text == text_) {
    rejected_.clear();
    return absl::OkStatus();
  }
  if (!rejected_.empty() && text == rejected_) return absl::OkStatus();  // logged already
  auto parsed = PrincipalTable::Parse(text);
  if (!parsed.ok()) {
    rejected_ = std::move(text);
    return parsed.status();
  }
  principals_ = std::make_shared<const PrincipalTable>(*std::move(parsed));
  text_ = std::move(text);
  rejected_.clear();
  base::LogInfo("tokens read", {{"principals", principals_->size()}});
  return absl::OkStatus();
}

AuthPolicy Authority::Current() {
  if (!wants_tokens()) return {};
  base::MutexLock lock(mutex_);
  LookIfDue();
  return {principals_, options_.health_without_token, options_.reflection_without_token};
}

void Authority::Reload() {
  base::MutexLock lock(mutex_);
  if (wants_tokens()) Look();
}

bool Authority::FileIsOk() {
  base::MutexLock lock(mutex_);
  return !unreadable_ && rejected_.empty();
}

void Authority::Watch() {
  if (!wants_tokens() || watch_.joinable()) return;
  watch_ = std::thread([this] {
    base::MutexLock lock(mutex_);
    const auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ended_; };
    while (!ended_changed_.WaitFor(lock, absl::ToChronoNanoseconds(options_.reload), ended)) LookIfDue();
  });
}

Authority::~Authority() {
  {
    base::MutexLock lock(mutex_);
    ended_ = true;
  }
  ended_changed_.NotifyAll();
  if (watch_.joinable()) watch_.join();
}

void Authority::LookIfDue() {
  if (clock_.Monotonic() >= next_look_) Look();
}

void Authority::Look() {
  next_look_ = clock_.Monotonic() + options_.reload;
  const bool was_unreadable = unreadable_;
  const absl::Status status = Load();
  if (status.ok()) return;
  // Keep the old principals: a file that is half written or briefly missing must not lock anyone out.
  const bool is_logged = was_unreadable && unreadable_;  // Load reports a text that does not parse only once
  if (!is_logged) {
    base::LogError("token file rejected; the last valid one stays in use", {{"error", std::string(status.message())}});
  }
}

bool Authority::Resolve(Caller& caller) const {
  if (!base::EqualInConstantTime(caller.forward_secret, forward_secret_)) return false;
  caller.peer = std::move(caller.forward_peer);
  caller.certificate_names = std::move(caller.forward_names);
  return true;
}

absl::StatusOr<Principal> Authority::Admit(std::string_view path, const Caller& caller) {
  auto principal = Decide(Current(), path, caller, clock_.Now());
  if (!principal.ok()) Refused(path, caller, principal.status());
  return principal;
}

void Authority::Refused(std::string_view path, const Caller& caller, const absl::Status& status) {
  const std::string reason = base::Reason(status);
  if (!reason.empty() && options_.count_refusal) options_.count_refusal(reason);
  if (!log_limit_.Take(clock_.Monotonic()).has_value()) return;  // the metric counts all
  const std::map<std::string, std::string> metadata = base::ReasonMetadata(status);
  const auto name = metadata.find("principal");
  const std::string certificate = caller.certificate_names.empty() ? "" : caller.certificate_names.front();
  base::LogWarning("refused", {{"method", path.substr(0, kMaxLoggedBytes)},
                               {"peer", caller.peer.substr(0, kMaxLoggedBytes)},
                               {"certificate", certificate.substr(0, kMaxLoggedBytes)},
                               {"principal", name == metadata.end() ? "" : name->second},
                               {"code", absl::StatusCodeToString(status.code())},
                               {"reason", reason}});
}

}  // namespace nibble::auth
