#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/base/mutex.h"

namespace nibble::http {

// Renders the exposition on its own thread, one text at a time. All callers that ask while a text is being rendered
// share the next text, so the cost of scrapes does not grow with their number. Thread-safe.
class MetricsRenderer {
 public:
  // Called on the renderer's thread; null: rendering failed.
  using Done = std::function<void(std::shared_ptr<const std::string>)>;

  // At most `max_waiting` callers wait for the next text, in addition to those whose text is being rendered.
  MetricsRenderer(std::function<std::string()> render, std::size_t max_waiting);
  ~MetricsRenderer();  // waits for the text being rendered; callers that wait for the next get null
  MetricsRenderer(const MetricsRenderer&) = delete;
  MetricsRenderer& operator=(const MetricsRenderer&) = delete;

  // False if max_waiting callers already wait for the next text; `done` is then not called.
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
