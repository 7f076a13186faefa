#include "server/base/failpoint_files.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <string>
#include <utility>

#include "server/base/error.h"
#include "server/base/hooked_files.h"
#include "server/base/strings.h"

namespace nibble::base {

namespace {

enum class Action { kBefore, kAfter, kStop, kFull };
constexpr const char* kActions[] = {"before", "after", "stop", "full"};

class Trap {
 public:
  Trap(std::string part, std::int64_t number, Action action) : part_(std::move(part)), number_(number), action_(action) {}

  template <typename Work>
  auto Around(std::string_view operation, const std::string& path, Work work) -> decltype(work()) {
    if (operation == "read" || path.find(part_) == std::string::npos) return work();
    const std::int64_t number = ++count_;
    if (action_ == Action::kFull) {
      if (number < number_) return work();
      return WithReason(absl::ResourceExhaustedError(StrCat("write ", path, ": No space left on device")), "DISK_FULL");
    }
    if (number != number_) return work();
    if (action_ == Action::kBefore) ::kill(::getpid(), SIGKILL);
    if (action_ == Action::kStop) ::kill(::getpid(), SIGSTOP);
    auto result = work();
    if (action_ == Action::kAfter) ::kill(::getpid(), SIGKILL);
    return result;
  }
  template <typename Write>
  absl::Status Append(const std::string& path, std::string_view bytes, Write write) {
    return Around("append", path, [&] { return write(bytes); });
  }

 private:
  const std::string part_;
  const std::int64_t number_;
  const Action action_;
  std::atomic<std::int64_t> count_{0};
};

}  // namespace

absl::StatusOr<std::unique_ptr<FileSystem>> MakeFailpointFiles(FileSystem& real, std::string_view spec) {
  const absl::Status wrong = absl::InvalidArgumentError(StrCat("failpoint \"", spec, "\", wanted PART:N:ACTION"));
  const std::size_t last = spec.rfind(':');
  const std::size_t middle = last == std::string_view::npos || last == 0 ? last : spec.rfind(':', last - 1);
  if (middle == std::string_view::npos || middle == 0 || middle == last) return wrong;
  const std::string_view digits = spec.substr(middle + 1, last - middle - 1);
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size() || number < 1) return wrong;
  for (int action = 0; action < 4; ++action) {
    if (spec.substr(last + 1) != kActions[action]) continue;
    return std::unique_ptr<FileSystem>(std::make_unique<HookedFiles<Trap>>(real, std::string(spec.substr(0, middle)), number,
                                                                           static_cast<Action>(action)));
  }
  return wrong;
}

}  // namespace nibble::base
