#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/base/mutex.h"

namespace nibble::http {

// Renders the exposition on a thread of its own, once at a time. All who ask while one text is rendered share the next: the cost of
// scrapes does not grow with their number. Thread-safe.
class MetricsRenderer {
 public:
  // Called on the renderer's thread; null: the rendering failed.
  using Done = std::function<void(std::shared_ptr<const std::string>)>;

  // At most `max_waiting` callers wait at a time.
  MetricsRenderer(std::function<std::string()> render, std::size_t max_waiting);
  ~MetricsRenderer();  // waits for what is being rendered; those who wait for the next get null
  MetricsRenderer(const MetricsRenderer&) = delete;
  MetricsRenderer& operator=(const MetricsRenderer&) = delete;

  // False, and `done` is not called, where max_waiting callers wait.
  bool Ask(Done done);

 private:
  void Run();

  const std::function<std::string()> render_;
  const std::size_t max_waiting_;
  base::Mutex mutex_;
  base::Condition wake_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Done> waiting_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace nibble::http
