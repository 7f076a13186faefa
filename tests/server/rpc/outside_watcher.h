#pragma once
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <cstdint>
#include <string>

namespace nibble::testing_support {

// Counts accesses to the inodes of the folder outside/: open, read, write, rename, remove, make; by name or by another
// hard link. In the directory above, whose own folders the server opens, counts only what is made, renamed or removed.
class OutsideWatcher {
 public:
  explicit OutsideWatcher(const std::string& above) : fd_(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
    Watch(above, IN_CREATE | IN_DELETE | IN_MOVE);
    for (const char* path : {"/outside", "/outside/secret.txt", "/outside/config.json"})
      Watch(above + path, IN_ALL_EVENTS);
  }
  ~OutsideWatcher() { close(fd_); }
  // Events since the last call.
  int Touches() {
    int events = 0;
    alignas(inotify_event) char buffer[1 << 14];
    for (ssize_t n = read(fd_, buffer, sizeof buffer); n > 0; n = read(fd_, buffer, sizeof buffer)) {
      for (ssize_t at = 0; at < n; ++events) {
        at += static_cast<ssize_t>(sizeof(inotify_event) + reinterpret_cast<const inotify_event*>(buffer + at)->len);
      }
    }
    return events;
  }

 private:
  void Watch(const std::string& path, std::uint32_t events) {
    EXPECT_GE(inotify_add_watch(fd_, path.c_str(), events), 0) << path;
  }
  int fd_;
};

}  // namespace nibble::testing_support
