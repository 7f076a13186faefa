#include "server/http/metrics_renderer.h"

#include <pthread.h>

#include <exception>
#include <utility>

#include "server/base/log.h"

namespace nibble::http {

MetricsRenderer::MetricsRenderer(std::function<std::string()> render, std::size_t max_waiting)
    : render_(std::move(render)), max_waiting_(max_waiting), thread_([this] { Run(); }) {}

MetricsRenderer::~MetricsRenderer() {
  {
    base::MutexLock lock(mutex_);
    stop_ = true;
  }
  wake_.NotifyOne();
  thread_.join();
}

bool MetricsRenderer::Ask(Done done) {
  {
    base::MutexLock lock(mutex_);
    if (waiting_.size() >= max_waiting_) return false;
    waiting_.push_back(std::move(done));
  }
  wake_.NotifyOne();
  return true;
}

void MetricsRenderer::Run() {
  pthread_setname_np(pthread_self(), "nibble-metrics");
  bool stopped = false;
  while (!stopped) {
    std::vector<Done> asked;
    {
      base::MutexLock lock(mutex_);
      wake_.Wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stop_ || !waiting_.empty(); });
      asked.swap(waiting_);
      stopped = stop_;
    }
    std::shared_ptr<const std::string> text;
    try {
      if (!stopped) text = std::make_shared<const std::string>(render_());
    } catch (const std::exception& error) {
      base::LogError("cannot render the metrics", {{"why", error.what()}});
    } catch (...) {
      base::LogError("cannot render the metrics", {{"why", "unknown exception"}});
    }
    for (const Done& done : asked) done(text);
  }
}

}  // namespace nibble::http
