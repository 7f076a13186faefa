#include "server/model/share_file.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace nibble::model {
namespace {

constexpr int kMode = 0640;  // as base::FileSystem::Create

bool Clone(const std::string& from, const std::string& to) {
  const int source = ::open(from.c_str(), O_RDONLY | O_CLOEXEC);
  if (source < 0) return false;
  const int target = ::open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kMode);
  bool cloned = false;
  if (target >= 0) {
    cloned = ::ioctl(target, FICLONE, source) == 0;
    ::close(target);
    if (!cloned) ::unlink(to.c_str());
  }
  ::close(source);
  return cloned;
}

}  // namespace

bool ShareFile(const std::string& from, const std::string& to) {
  return Clone(from, to) || ::link(from.c_str(), to.c_str()) == 0;
}

}  // namespace nibble::model
