#include "server/http/metrics_renderer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace nibble::http {
namespace {

// The text that a caller gets; "failed" for null, "refused" if too many callers wait.
std::future<std::string> Ask(MetricsRenderer& renderer) {
  auto promise = std::make_shared<std::promise<std::string>>();
  auto text = promise->get_future();
  if (!renderer.Ask([promise](std::shared_ptr<const std::string> got) {
        promise->set_value(got == nullptr ? "failed" : *got);
      })) {
    promise->set_value("refused");
  }
  return text;
}

TEST(MetricsRendererTest, CallersDuringARenderingShareTheNextText) {
  std::promise<void> begun, go;
  std::atomic<int> rendered{0};
  MetricsRenderer renderer(
      [&] {
        if (++rendered == 1) {
          begun.set_value();
          go.get_future().wait();
        }
        return std::to_string(rendered);
      },
      /*max_waiting=*/10);
  auto first = Ask(renderer);
  begun.get_future().wait();
  std::vector<std::future<std::string>> others;
  for (int i = 0; i < 10; ++i) others.push_back(Ask(renderer));
  EXPECT_EQ(Ask(renderer).get(), "refused") << "the maximum number of callers already waits";
  go.set_value();
  EXPECT_EQ(first.get(), "1") << "the text that was rendered for the first caller";
  for (auto& other : others) EXPECT_EQ(other.get(), "2");
  EXPECT_EQ(Ask(renderer).get(), "3");
}

TEST(MetricsRendererTest, ThrowingRenderingDoesNotAffectTheNext) {
  int calls = 0;
  MetricsRenderer renderer(
      [&]() -> std::string {
        switch (++calls) {
          case 1: throw std::runtime_error("no");
          case 2: throw 5;
          default: return "text";
        }
      },
      /*max_waiting=*/1);
  EXPECT_EQ(Ask(renderer).get(), "failed");
  EXPECT_EQ(Ask(renderer).get(), "failed");
  EXPECT_EQ(Ask(renderer).get(), "text");
}

TEST(MetricsRendererTest, DestructorAnswersWaitingCallers) {
  std::promise<void> begun, go;
  const auto gate = go.get_future().share();
  std::atomic<int> rendered{0};
  auto renderer = std::make_unique<MetricsRenderer>(
      [&] {
        if (++rendered == 1) begun.set_value();
        gate.wait();
        return std::string("text");
      },
      /*max_waiting=*/5);
  auto first = Ask(*renderer);
  begun.get_future().wait();
  auto second = Ask(*renderer);
  std::thread stop([&renderer] { renderer.reset(); });
  go.set_value();
  stop.join();
  EXPECT_EQ(first.get(), "text");
  const std::string late = second.get();  // "text" if the second rendering began before the destructor
  EXPECT_EQ(late, rendered == 1 ? "failed" : "text");
}

}  // namespace
}  // namespace nibble::http
