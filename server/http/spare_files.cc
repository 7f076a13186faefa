#include "server/http/spare_files.h"

#include <fcntl.h>
#include <unistd.h>

namespace nibble::http {

SpareFiles::~SpareFiles() {
  while (Release()) {
  }
}

bool SpareFiles::Release() {
  if (files_.empty()) return false;
  ::close(files_.back());
  files_.pop_back();
  return true;
}

void SpareFiles::Refill() {
  while (files_.size() < count_) {
    const int file = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    files_.push_back(file);
  }
}

}  // namespace nibble::http
