#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/kube/api_client.h"
#include "tests/server/kube/waiting.h"
#include "tests/support/fake_api_objects.h"
#include "tests/support/fake_api_server.h"

namespace nibble::kube {
namespace {

using testing::ApiFault;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::RequestKind;
using testing::WatchEnd;

constexpr char kPods[] = "/api/v1/namespaces/ml/pods";

base::Json WatchedPod(const std::string& name) { return testing::ApiObject("Pod", name, {{"app", "x"}}); }

// A watch of the pods with the label app=x.
class ApiWatchTest : public ::testing::Test {
 protected:
  ApiWatch Watching() {
    ApiWatch watch;
    watch.target = std::string(kPods) + "?labelSelector=app%3Dx";
    watch.resource_version = "100";
    watch.on_open = [this] { opened_.Add(true); };
    watch.on_event = [this](const std::string& type, const base::Json& object) {
      const base::Json metadata = object.value("metadata", base::Json::object());
      events_.Add(type + " " + metadata.value("name", ""));
    };
    watch.on_end = [this](const absl::Status& status, std::optional<absl::Duration> retry_after) {
      ends_.Add({status, retry_after});
    };
    return watch;
  }
  // Starts the watch and waits until it is open at both ends.
  void Start() {
    watch_ = client_.StartWatch(Watching());
    ASSERT_TRUE(opened_.Await(1));
    ASSERT_TRUE(testing_support::Soon([&] { return server_.num_watches() == 1; }));
  }
  // Waits for the end of the watch and returns its status.
  absl::Status End() {
    if (!ends_.Await(1)) return absl::DeadlineExceededError("the watch has not ended");
    return ends_.Values()[0].first;
  }

  testing::FakeApiServer server_;
  Collected<bool> opened_;
  Collected<std::string> events_;
  Collected<std::pair<absl::Status, std::optional<absl::Duration>>> ends_;
  ApiClient client_{server_.access()};
  std::unique_ptr<ApiClient::Watch> watch_;
};

TEST_F(ApiWatchTest, PassesEventsOnAsTheyHappen) {
  server_.Put(WatchedPod("a"));
  Start();
  ASSERT_TRUE(events_.Await(1)) << "the change after version 100, made before the watch began";
  server_.Put(WatchedPod("b"));
  server_.Put(testing::ApiObject("Pod", "other"));
  server_.Put(WatchedPod("b"));
  server_.Remove("pods", "a");
  ASSERT_TRUE(events_.Await(4));
  server_.SendBookmark();
  ASSERT_TRUE(events_.Await(5));
  EXPECT_THAT(events_.Values(), ElementsAre("ADDED a", "ADDED b", "MODIFIED b", "DELETED a", "BOOKMARK "));
  EXPECT_TRUE(ends_.Values().empty());
  EXPECT_EQ(server_.requests()[0].target,
            "/api/v1/namespaces/ml/pods?labelSelector=app%3Dx&watch=1&allowWatchBookmarks=true&resourceVersion=100&"
            "timeoutSeconds=240");
}

TEST_F(ApiWatchTest, CleanEndIsOk) {
  Start();
  server_.EndWatches(WatchEnd::kClean);
  ASSERT_TRUE(ends_.Await(1));
  EXPECT_TRUE(End().ok()) << End();
}

TEST_F(ApiWatchTest, ServerEndsTheWatchAfterTheTimeAskedFor) {
  ApiWatch watch = Watching();
  watch.timeout = absl::Seconds(1);
  watch_ = client_.StartWatch(std::move(watch));
  ASSERT_TRUE(ends_.Await(1));
  EXPECT_TRUE(End().ok()) << End();
}

TEST_F(ApiWatchTest, CutIsUnavailable) {
  Start();
  server_.EndWatches(WatchEnd::kCut);
  EXPECT_TRUE(absl::IsUnavailable(End())) << End();
}

TEST_F(ApiWatchTest, CutInALineDropsTheLine) {
  Start();
  server_.Put(WatchedPod("a"));
  ASSERT_TRUE(events_.Await(1));
  server_.EndWatches(WatchEnd::kCutInLine);
  EXPECT_TRUE(absl::IsUnavailable(End())) << End();
  EXPECT_THAT(events_.Values(), ElementsAre("ADDED a"));
}

TEST_F(ApiWatchTest, CleanEndInALineIsUnavailable) {
  Start();
  server_.SendOnWatches(R"({"type": "ADDED", "object": {}})");
  server_.EndWatches(WatchEnd::kClean);
  EXPECT_TRUE(absl::IsUnavailable(End())) << End();
  EXPECT_THAT(events_.Values(), ElementsAre());
}

TEST_F(ApiWatchTest, ExpiredVersionIsAnErrorEvent) {
  server_.Forget();
  watch_ = client_.StartWatch(Watching());
  ASSERT_TRUE(ends_.Await(1));
  EXPECT_THAT(events_.Values(), ElementsAre("ERROR "));
}

TEST_F(ApiWatchTest, HttpErrorEndsTheWatch) {
  server_.Fail(1, RequestKind::kWatch, {.status = 429, .retry_after_s = 3});
  watch_ = client_.StartWatch(Watching());
  EXPECT_TRUE(absl::IsResourceExhausted(End())) << End();
  EXPECT_EQ(ends_.Values()[0].second, absl::Seconds(3));
  EXPECT_TRUE(opened_.Values().empty());
}

TEST_F(ApiWatchTest, MalformedEventsEndTheWatch) {
  for (const char* line : {"{", "[]", "7", "{}", R"({"type": 7, "object": {}})", R"({"type": "ADDED"})"}) {
    const std::size_t num_ends = ends_.Values().size();
    watch_ = client_.StartWatch(Watching());
    ASSERT_TRUE(testing_support::Soon([&] { return server_.num_watches() == 1; }));
    server_.SendOnWatches(std::string(line) + "\n");
    ASSERT_TRUE(ends_.Await(num_ends + 1));
    EXPECT_TRUE(absl::IsInternal(ends_.Values().back().first)) << line << ": " << ends_.Values().back().first;
    ASSERT_TRUE(testing_support::Soon([&] { return server_.num_watches() == 0; }));
  }
  EXPECT_THAT(events_.Values(), ElementsAre());
}

TEST_F(ApiWatchTest, LinesMayBeUpTo4Mib) {
  Start();
  base::Json pod = WatchedPod("large");
  pod["spec"] = std::string(3 << 20, 'x');
  server_.Put(pod);
  ASSERT_TRUE(events_.Await(1));
  pod["spec"] = std::string(5 << 20, 'x');
  server_.Put(pod);
  EXPECT_THAT(std::string(End().message()), HasSubstr("longer than 4194304 bytes"));
  EXPECT_THAT(events_.Values(), ElementsAre("ADDED large"));
}

TEST_F(ApiWatchTest, DestructionEndsTheWatchAtOnce) {
  Start();
  watch_ = nullptr;
  EXPECT_TRUE(testing_support::Soon([&] { return server_.num_watches() == 0; })) << "the connection is closed";
  EXPECT_TRUE(events_.Values().empty());
  EXPECT_TRUE(ends_.Values().empty());
}

TEST_F(ApiWatchTest, DestructionDoesNotWaitForASilentServer) {
  server_.Fail(1, RequestKind::kWatch, {.kind = ApiFault::kSilent});
  watch_ = client_.StartWatch(Watching());
  ASSERT_TRUE(testing_support::Soon([&] { return server_.CountOf(RequestKind::kWatch) == 1; }));
  watch_ = nullptr;
  watch_ = client_.StartWatch(Watching());
  watch_ = nullptr;  // before it is connected
  client_.RunAndWait([] {});
  EXPECT_TRUE(ends_.Values().empty());
}

TEST_F(ApiWatchTest, CallbackMayDestroyItsWatch) {
  ApiWatch watch = Watching();
  watch.on_event = [this](const std::string& type, const base::Json&) {
    watch_ = nullptr;
    events_.Add(type);
  };
  server_.Put(WatchedPod("a"));
  server_.Put(WatchedPod("b"));
  client_.RunAndWait([&] { watch_ = client_.StartWatch(std::move(watch)); });
  ASSERT_TRUE(events_.Await(1));
  client_.RunAndWait([] {});
  EXPECT_THAT(events_.Values(), ElementsAre("ADDED"));
  EXPECT_TRUE(ends_.Values().empty());
}

}  // namespace
}  // namespace nibble::kube
