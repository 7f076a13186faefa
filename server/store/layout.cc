#include "server/store/layout.h"

#include <algorithm>
#include <cstdio>

#include "server/base/files.h"
#include "server/base/log.h"

namespace nibble::store {

using base::JoinPath;

StatePaths::StatePaths(std::string root, std::string database_root)
    : root_(std::move(root)), database_root_(database_root.empty() ? root_ : std::move(database_root)) {
  CHECK(!root_.empty() && root_.front() == '/' && database_root_.front() == '/');
}

std::string StatePaths::database() const { return JoinPath(database_root_, "nibble.db"); }
std::string StatePaths::trainer_socket() const { return JoinPath(database_root_, "trainers.sock"); }
std::string StatePaths::lock() const { return JoinPath(root_, "lock"); }
std::string StatePaths::database_lock() const { return JoinPath(database_root_, "lock"); }
std::string StatePaths::reserve() const { return JoinPath(database_root_, "reserve"); }
std::string StatePaths::models() const { return JoinPath(root_, "models"); }
std::string StatePaths::model(std::string_view name) const { return JoinPath(models(), name); }
std::string StatePaths::datasets() const { return JoinPath(root_, "datasets"); }
std::string StatePaths::dataset(std::string_view name) const { return JoinPath(datasets(), name); }
std::string StatePaths::bases() const { return JoinPath(root_, "bases"); }
std::string StatePaths::tokens() const { return JoinPath(root_, "tokens"); }
std::string StatePaths::tokens(std::string_view dataset) const { return JoinPath(tokens(), dataset); }
std::string StatePaths::operations() const { return JoinPath(root_, "operations"); }
std::string StatePaths::server_file() const { return JoinPath(root_, "server.json"); }
std::string StatePaths::uploads() const { return JoinPath(root_, "uploads"); }
std::string StatePaths::jobs() const { return JoinPath(root_, "jobs"); }
std::string StatePaths::job(std::string_view id) const { return JoinPath(jobs(), id); }
std::string StatePaths::start(std::string_view id) const { return JoinPath(job(id), "start"); }
std::string StatePaths::start_file(std::string_view id) const { return JoinPath(job(id), "start.json"); }
std::string StatePaths::attempts(std::string_view id) const { return JoinPath(job(id), "attempts"); }
std::string StatePaths::attempt(std::string_view id, std::int64_t attempt) const {
  return JoinPath(attempts(id), std::to_string(attempt));
}

std::string CheckpointName(std::int64_t step) {
  char text[32];
  std::snprintf(text, sizeof text, "step-%08lld", static_cast<long long>(step));
  return text;
}

std::optional<std::int64_t> CheckpointStep(std::string_view name) {
  constexpr std::string_view kPrefix = "step-";
  if (name.substr(0, kPrefix.size()) != kPrefix) return std::nullopt;
  const std::string_view digits = name.substr(kPrefix.size());
  if (digits.size() < 8 || digits.size() > 18) return std::nullopt;  // %08lld; 18 digits fit into 64 bits
  if (!std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; })) return std::nullopt;
  return std::stoll(std::string(digits));
}

}  // namespace nibble::store
