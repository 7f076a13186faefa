// Shared by the tests of the engine: a sink that records what it receives, and a small model.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "server/serve/engine.h"
#include "tests/server/model/small_models.h"

namespace nibble::serve {

// Records what it receives. Its hooks run on the engine's thread, so that a test can act between two steps.
class Sink : public ResponseSink {
 public:
  void OnStart(double queue_ms) override {
    started = true;
    queued_ms = queue_ms;
    if (on_start) on_start();
  }
  void OnPromptLogprobs(std::span<const TokenLogprob> logprobs) override {
    scored.insert(scored.end(), logprobs.begin(), logprobs.end());
  }
  bool Ready() override { return !ready || ready(); }
  void OnDelta(int index, std::string_view delta, std::span<const TokenLogprob> tokens) override {
    if (index > 0) {
      others.resize(std::max(others.size(), static_cast<std::size_t>(index)));
      for (const TokenLogprob& token : tokens) others[static_cast<std::size_t>(index - 1)].push_back(token.token);
      return;
    }
    text += delta;
    for (const TokenLogprob& token : tokens) {
      ids.push_back(token.token);
      logprobs.push_back(token.logprob);
    }
    if (on_delta) on_delta(ids.size());
  }
  void OnOutputEnd(const OutputEnd& end) override { ends.push_back(end); }
  void OnFinish(const Finish& finished) override {
    finish = finished;
    if (on_finish) on_finish();
    done_.set_value();
  }
  const Finish& Wait() {
    done_.get_future().wait();
    return finish;
  }

  bool started = false;
  double queued_ms = -1;
  // Of output 0: its text, its tokens, and the logprobs of the tokens if they were requested.
  std::string text;
  std::vector<std::int32_t> ids;
  std::vector<float> logprobs;
  std::vector<std::vector<std::int32_t>> others;  // tokens of outputs 1 and up
  std::vector<OutputEnd> ends;
  std::vector<TokenLogprob> scored;
  Finish finish;
  std::function<void()> on_start, on_finish;
  std::function<bool()> ready;
  std::function<void(std::size_t)> on_delta;

 private:
  std::promise<void> done_;
};

class EngineTest : public testing::Test {
 protected:
  std::unique_ptr<Engine> Start(EngineOptions options, const std::string& path) {
    auto engine = Engine::Start(models_.Load(path), models_.tokenizer(), options, models_.stream(), clock_);
    EXPECT_TRUE(engine.ok()) << engine.status();
    return *std::move(engine);
  }
  std::unique_ptr<Engine> Start(EngineOptions options = {}) { return Start(options, models_.int8()); }
  static Request Ask(int prompt_tokens, int max_tokens) {
    Request request;
    for (int i = 0; i < prompt_tokens; ++i) request.prompt.push_back(3 + i * 7 % 100);
    request.stopping.max_tokens = max_tokens;
    request.stopping.ignore_eos = true;
    return request;
  }
  // Runs one request and waits for its end.
  std::shared_ptr<Sink> Answer(Engine& engine, const Request& request) {
    auto sink = std::make_shared<Sink>();
    const absl::Status status = engine.Submit(request, sink);
    EXPECT_TRUE(status.ok()) << status;
    if (status.ok()) sink->Wait();
    return sink;
  }
  // Runs one request of ten seconds, so that the engine can estimate waits.
  void ServeForTenSeconds(Engine& engine) {
    auto slow = std::make_shared<Sink>();
    slow->on_delta = [&](std::size_t) { clock_.Advance(absl::Seconds(5)); };
    const absl::Status status = engine.Submit(Ask(3, 2), slow);
    ASSERT_TRUE(status.ok()) << status;
    slow->Wait();
  }

  model::SmallModels models_;
  base::FakeClock clock_{absl::UnixEpoch()};
};

}  // namespace nibble::serve
