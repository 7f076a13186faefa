// The large texts of all methods are encoded one at a time on a separate thread, even if only a template makes them
// large.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "server/auth/authority.h"
#include "tests/server/rpc/inference_fixture.h"
#include "tests/server/rpc/token_line.h"

namespace nibble::rpc {
namespace {

using testing_support::InfoOf;
using testing_support::Soon;

v1::ChatInput Chat(const std::string& role, const std::string& content, int messages = 1) {
  v1::ChatInput chat;
  for (int i = 0; i < messages; ++i) {
    v1::ChatMessage& message = *chat.add_messages();
    message.set_role(role);
    message.set_content(content);
  }
  return chat;
}

class InferenceTextTest : public testing_support::InferenceFixture {
 protected:
  struct PendingCall {
    grpc::ClientContext context;
    std::future<grpc::Status> status;
    bool ended() const { return status.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }
  };

  void SetUp() override {
    OpenState();
    ASSERT_NE(state_, nullptr);
    Publish("plain", "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}");
    Publish("echoes", "{% for i in range(20000) %}{{ messages[0]['content'] }} {% endfor %}");
    const auto locate = [this](const std::string& name, const auto&) -> absl::StatusOr<serve::ModelManager::Artifact> {
      const auto stored = state_->models->Get(name);
      if (!stored.ok()) return stored.status();
      return serve::ModelManager::Artifact{stored->directory, nullptr};
    };
    const auto exists = [this](const std::string& name) { return state_->models->Get(name).status(); };
    Serve(locate, exists, /*others=*/{}, /*max_receive_bytes=*/8 << 20);
    for (const char* name : {"plain", "echoes"}) ASSERT_TRUE(manager_->Acquire(name).ok());
  }
  void TearDown() override {
    OpenGate();
    InferenceFixture::TearDown();
  }

  void Publish(const std::string& name, const std::string& chat_template) {
    auto pending = state_->models->Begin(name);
    ASSERT_TRUE(pending.ok()) << pending.status();
    std::filesystem::copy(models_.bf16(), (*pending)->directory(), std::filesystem::copy_options::recursive);
    std::filesystem::remove((*pending)->directory() + "/manifest.json");
    model::WriteBytes((*pending)->directory() + "/chat_template.jinja", chat_template);
    const auto stored = (*pending)->Commit();
    ASSERT_TRUE(stored.ok()) << stored.status();
  }
  // Blocks the thread of large texts until OpenGate.
  void ShutGate() {
    auto shut = std::make_shared<std::promise<void>>();
    gate_ = shut;
    environment_.text_workers.Run([open = shut->get_future().share()] { open.wait(); });
  }
  void OpenGate() {
    if (gate_ != nullptr) gate_->set_value();
    gate_ = nullptr;
  }

  using Calls = std::map<std::string, std::unique_ptr<PendingCall>>;  // by the name that the test gives them
  template <typename Request, typename Response>
  void Begin(Calls& calls, const std::string& name,
             grpc::Status (v1::InferenceService::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
             const Request& request, const std::string& principal = "") {
    auto pending = std::make_unique<PendingCall>();
    if (!principal.empty()) pending->context.AddMetadata("authorization", "Bearer token-" + principal);
    pending->status = std::async(std::launch::async, [this, method, request, one = pending.get()] {
      Response response;
      return ((*inference_).*method)(&one->context, request, &response);
    });
    calls[name] = std::move(pending);
  }
  template <typename Request, typename Reply>
  void BeginStream(Calls& calls, const std::string& name,
                   std::unique_ptr<grpc::ClientReader<Reply>> (v1::InferenceService::Stub::*method)(
                       grpc::ClientContext*, const Request&),
                   const Request& request) {
    auto pending = std::make_unique<PendingCall>();
    pending->status = std::async(std::launch::async, [this, method, request, one = pending.get()] {
      const auto reader = ((*inference_).*method)(&one->context, request);
      for (Reply reply; reader->Read(&reply);) {
      }
      return reader->Finish();
    });
    calls[name] = std::move(pending);
  }
  // Begins a call of each method that renders and encodes `chat`, except ChatStream.
  Calls BeginAll(const std::string& model, const v1::ChatInput& chat) {
    using Stub = v1::InferenceService::Stub;
    Calls calls;
    v1::TokenizeRequest tokenize;
    tokenize.set_model(model);
    *tokenize.mutable_chat() = chat;
    Begin(calls, "Tokenize", &Stub::Tokenize, tokenize);
    v1::RenderTemplateRequest render;
    render.set_model(model);
    *render.mutable_chat() = chat;
    Begin(calls, "RenderTemplate", &Stub::RenderTemplate, render);
    v1::GenerateRequest generate;
    generate.set_model(model);
    *generate.mutable_chat() = chat;
    generate.mutable_stopping()->set_max_tokens(1);
    Begin(calls, "Generate", &Stub::Generate, generate);
    v1::ChatRequest chat_request;
    *chat_request.mutable_request() = generate;
    Begin(calls, "Chat", &Stub::Chat, chat_request);
    v1::GenerateStreamRequest stream;
    *stream.mutable_request() = generate;
    BeginStream(calls, "GenerateStream", &Stub::GenerateStream, stream);
    v1::ScoreRequest score;
    score.set_model(model);
    *score.mutable_chat() = chat;
    Begin(calls, "Score", &Stub::Score, score);
    v1::ScoreStreamRequest score_stream;
    *score_stream.mutable_request() = score;
    BeginStream(calls, "ScoreStream", &Stub::ScoreStream, score_stream);
    return calls;
  }
  grpc::Status TokenizeText(const std::string& text) {
    grpc::ClientContext context;
    v1::TokenizeRequest request;
    request.set_model("plain");
    request.set_text(text);
    v1::TokenizeResponse response;
    return inference_->Tokenize(&context, request, &response);
  }

  std::shared_ptr<std::promise<void>> gate_;
};

// C2 (docs/faults.md): a large chat must not be encoded on the shared workers, even if its contents are small and it is
// large only because of its roles, the number of its messages or the template.
TEST_F(InferenceTextTest, C2LargeChatsAreEncodedOnTheThreadOfLargeTexts) {
  struct Case {
    const char* what;
    const char* model;
    v1::ChatInput chat;
  };
  const std::string large(100 << 10, 'a');
  for (const Case& one :
       {Case{"a large role", "plain", Chat(large, "")}, Case{"a large content", "plain", Chat("user", large)},
        Case{"many messages", "plain", Chat("", "", 5000)},
        Case{"a template that repeats", "echoes", Chat("user", "abcd")}}) {
    ShutGate();
    Calls calls = BeginAll(one.model, one.chat);
    EXPECT_TRUE(Soon([&] { return environment_.live_calls.count() == calls.size(); })) << one.what;
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(TokenizeText("a b c").ok()) << one.what << ": the shared worker is free";
    for (const auto& [name, call] : calls) {
      EXPECT_FALSE(call->ended()) << name << " of " << one.what << " did not wait for its turn";
    }
    OpenGate();
    for (auto& [name, call] : calls) {
      const grpc::Status status = call->status.get();
      // The other methods would run the model, whose context is too short.
      const bool without_model = name == "Tokenize" || name == "RenderTemplate";
      EXPECT_EQ(status.error_code(), without_model ? grpc::StatusCode::OK : grpc::StatusCode::INVALID_ARGUMENT)
          << name << " of " << one.what << ": " << status.error_message();
      if (!without_model) {
        EXPECT_EQ(InfoOf(status).reason(), "PROMPT_TOO_LONG") << name << " of " << one.what;
      }
    }
  }
}

// C4 (docs/faults.md): the thread of large texts encodes them in the order of arrival. Without a limit, one principal
// could hold up all others.
TEST_F(InferenceTextTest, C4OnePrincipalDoesNotTakeAllPlacesOfLargeTexts) {
  const std::string file = models_.Path("tokens.jsonl");
  model::WriteBytes(file, testing_support::TokenLine("ann", "infer") + testing_support::TokenLine("bob", "infer"));
  auto authority = auth::Authority::Open(base::RealFileSystem(), base::RealClock(), {.token_file = file});
  ASSERT_TRUE(authority.ok()) << authority.status();
  environment_.authority = authority->get();
  v1::TokenizeRequest request;
  request.set_model("plain");
  request.set_text(std::string(100 << 10, 'a'));
  ShutGate();
  Calls calls;
  for (int i = 0; i <= InferenceService::kMaxLargeTextsOfPrincipal; ++i) {
    Begin(calls, "ann's " + std::to_string(i), &v1::InferenceService::Stub::Tokenize, request, "ann");
  }
  const auto ended = [](const auto& call) { return call.second->ended(); };
  EXPECT_TRUE(Soon([&] { return std::any_of(calls.begin(), calls.end(), ended); })) << "one of ann's calls is refused";
  Begin(calls, "bob's", &v1::InferenceService::Stub::Tokenize, request, "bob");
  EXPECT_TRUE(Soon([&] { return environment_.live_calls.count() == calls.size() - 1; }));
  EXPECT_EQ(std::count_if(calls.begin(), calls.end(), ended), 1);
  OpenGate();
  int refused = 0;
  for (auto& [name, call] : calls) {
    const grpc::Status status = call->status.get();
    if (status.ok()) continue;
    ++refused;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << name << ": " << status.error_message();
    EXPECT_EQ(InfoOf(status).reason(), "QUEUE_FULL");
    EXPECT_NE(name, "bob's");
  }
  EXPECT_EQ(refused, 1);
}

}  // namespace
}  // namespace nibble::rpc
