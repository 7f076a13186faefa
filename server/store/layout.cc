#include "server/store/layout.h"

#include <algorithm>
#include <cstdio>

#include "server/base/files.h"
#include "server/base/log.h"

namespace nibble::store {

using base::JoinPath;

Layout::Layout(std::string root) : root_(std::move(root)) { CHECK(!root_.empty() && root_.front() == '/'); }

std::string Layout::database() const { return JoinPath(root_, "nibble.db"); }
std::string Layout::lock() const { return JoinPath(root_, "lock"); }
std::string Layout::reserve() const { return JoinPath(root_, "reserve"); }
std::string Layout::models() const { return JoinPath(root_, "models"); }
std::string Layout::model(std::string_view name) const { return JoinPath(models(), name); }
std::string Layout::datasets() const { return JoinPath(root_, "datasets"); }
std::string Layout::dataset(std::string_view name) const { return JoinPath(datasets(), name); }
std::string Layout::bases() const { return JoinPath(root_, "bases"); }
std::string Layout::tokens() const { return JoinPath(root_, "tokens"); }
std::string Layout::tokens(std::string_view dataset) const { return JoinPath(tokens(), dataset); }
std::string Layout::uploads() const { return JoinPath(root_, "uploads"); }
std::string Layout::jobs() const { return JoinPath(root_, "jobs"); }
std::string Layout::job(std::string_view id) const { return JoinPath(jobs(), id); }
std::string Layout::attempts(std::string_view id) const { return JoinPath(job(id), "attempts"); }
std::string Layout::attempt(std::string_view id, std::int64_t attempt) const {
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
  if (digits.size() < 8 || digits.size() > 18) return std::nullopt;
  if (!std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; })) return std::nullopt;
  return std::stoll(std::string(digits));
}

}  // namespace nibble::store
