#include "server/base/failpoint_files.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "server/base/error.h"
#include "server/base/hooked_files.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::base {

namespace {

enum class Action { kBefore, kAfter, kStop, kFull };
constexpr const char* kActions[] = {"before", "after", "stop", "full"};

struct Point {
  std::string part;
  std::int64_t number = 0;
  Action action = Action::kBefore;
};

class Trap {
 public:
  explicit Trap(std::vector<Point> points) : points_(std::move(points)), counts_(points_.size()) {}

  template <typename Work>
  auto Around(std::string_view operation, const std::string& path, Work work) -> decltype(work()) {
    if (operation == "read") return work();
    bool die_after = false;
    for (std::size_t i = 0; i < points_.size(); ++i) {
      const Point& point = points_[i];
      if (path.find(point.part) == std::string::npos) continue;
      const std::int64_t number = ++counts_[i];
      if (point.action == Action::kFull && number >= point.number) {
        return WithReason(absl::ResourceExhaustedError(StrCat("write ", path, ": No space left on device")),
                          "DISK_FULL");
      }
      if (number != point.number) continue;
      if (point.action == Action::kBefore) ::kill(::getpid(), SIGKILL);
      if (point.action == Action::kStop) ::kill(::getpid(), SIGSTOP);
      if (point.action == Action::kAfter) die_after = true;
    }
    auto result = work();
    if (die_after) ::kill(::getpid(), SIGKILL);
    return result;
  }
  template <typename Write>
  absl::Status Append(const std::string& path, std::string_view bytes, Write write) {
    return Around("append", path, [&] { return write(bytes); });
  }

 private:
  const std::vector<Point> points_;
  std::vector<std::atomic<std::int64_t>> counts_;  // one per element of points_
};

absl::StatusOr<Point> ParsePoint(std::string_view spec) {
  const absl::Status wrong = absl::InvalidArgumentError(StrCat("failpoint \"", spec, "\", wanted PART:N:ACTION"));
  const std::size_t last = spec.rfind(':');
  const std::size_t middle = last == std::string_view::npos || last == 0 ? last : spec.rfind(':', last - 1);
  if (middle == std::string_view::npos || middle == 0 || middle == last) return wrong;
  const std::string_view digits = spec.substr(middle + 1, last - middle - 1);
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size() || number < 1) return wrong;
  for (int action = 0; action < 4; ++action) {
    if (spec.substr(last + 1) == kActions[action])
      return Point{std::string(spec.substr(0, middle)), number, static_cast<Action>(action)};
  }
  return wrong;
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileSystem>> MakeFailpointFiles(FileSystem& real, std::string_view spec) {
  std::vector<Point> points;
  for (std::size_t begin = 0, end = 0; end != std::string_view::npos; begin = end + 1) {
    end = spec.find(',', begin);
    NIBBLE_ASSIGN_OR_RETURN(Point point, ParsePoint(spec.substr(begin, end - begin)));
    points.push_back(std::move(point));
  }
  return std::unique_ptr<FileSystem>(std::make_unique<HookedFiles<Trap>>(real, std::move(points)));
}

}  // namespace nibble::base
