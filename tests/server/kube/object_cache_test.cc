#include "server/kube/object_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

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
using testing_support::Soon;

base::Json CachedPod(const std::string& name, int number = 0) {
  base::Json pod = testing::ApiObject("Pod", name);
  pod["metadata"]["managedFields"] = base::Json::array({1, 2, 3});
  pod["spec"]["number"] = number;
  return pod;
}

class ObjectCacheTest : public ::testing::Test {
 protected:
  ObjectCacheOptions Options() {
    ObjectCacheOptions options;
    options.target = "/api/v1/namespaces/ml/pods";
    options.min_pause = options.max_pause = absl::Milliseconds(2);
    return options;
  }
  // Waits until the cache has listed its objects and the server has begun its watch.
  void Start(ObjectCacheOptions options) {
    cache_ = std::make_unique<ObjectCache>(client_, std::move(options));
    ASSERT_TRUE(Soon([&] { return cache_->synced() && server_.num_watches() == 1; }));
  }
  void Start() { Start(Options()); }
  // Waits until the n-th watch is the only open one.
  bool NthWatchBegins(int n) const {
    return Soon([&] { return server_.CountOf(RequestKind::kWatch) == n && server_.num_watches() == 1; });
  }
  // Changes a pod and waits until the cache has handled the event.
  bool PassesEvents() {
    server_.Put(CachedPod("event", ++num_events_));
    const bool passed = NumberBecomes("event", num_events_);
    client_.RunAndWait([] {});
    return passed;
  }

  // The number in the cached pod; -1 if there is no such pod.
  int Number(const std::string& name) const {
    const auto pod = cache_->Find(name);
    return pod == nullptr ? -1 : (*pod)["spec"]["number"].get<int>();
  }
  bool NumberBecomes(const std::string& name, int number) const {
    return Soon([&] { return Number(name) == number; });
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& object : cache_->Snapshot()) names.push_back((*object)["metadata"]["name"]);
    return names;
  }
  // Versions from which the watches so far began.
  std::vector<std::string> WatchVersions() const {
    std::vector<std::string> versions;
    for (const auto& request : server_.requests()) {
      if (request.kind == RequestKind::kWatch)
        versions.push_back(testing::ParseTarget(request.target).Query("resourceVersion"));
    }
    return versions;
  }
  std::string Version(const std::string& name) const { return (*cache_->Find(name))["metadata"]["resourceVersion"]; }

  testing::FakeApiServer server_;
  base::FakeClock clock_{absl::UnixEpoch()};
  ApiClient client_{server_.access()};
  std::unique_ptr<ObjectCache> cache_;
  int num_events_ = 0;
};

TEST_F(ObjectCacheTest, ListsAllPages) {
  for (int i = 0; i < 200; ++i) server_.Put(CachedPod("pod-" + std::to_string(1000 + i), i));
  server_.Put(testing::ApiObject("Job", "other-collection"));
  ObjectCacheOptions options = Options();
  options.page = 30;
  Start(options);
  EXPECT_EQ(cache_->Snapshot().size(), 200u);
  EXPECT_EQ(server_.CountOf(RequestKind::kList), 7);
  EXPECT_EQ(Number("pod-1000"), 0);
  EXPECT_EQ(Number("pod-1199"), 199);
  EXPECT_EQ(cache_->Find("other-collection"), nullptr);
  EXPECT_THAT(server_.requests()[0].target, HasSubstr("pods?limit=30"));
}

TEST_F(ObjectCacheTest, AppliesEvents) {
  server_.Put(CachedPod("a", 1));
  server_.Put(CachedPod("b", 1));
  Start();
  EXPECT_THAT(Names(), ElementsAre("a", "b"));
  server_.Put(CachedPod("c", 1));
  server_.Put(CachedPod("a", 2));
  server_.Remove("pods", "b");
  ASSERT_TRUE(Soon([&] { return cache_->Find("b") == nullptr; }));
  EXPECT_EQ(Number("a"), 2);
  EXPECT_EQ(Number("c"), 1);
  EXPECT_EQ(server_.CountOf(RequestKind::kList), 1);
}

TEST_F(ObjectCacheTest, KnowsNothingBeforeTheFirstList) {
  server_.Fail(1, RequestKind::kList, {.kind = ApiFault::kSilent});
  cache_ = std::make_unique<ObjectCache>(client_, Options());
  ASSERT_TRUE(Soon([&] { return server_.CountOf(RequestKind::kList) == 1; }));
  EXPECT_FALSE(cache_->synced());
  EXPECT_EQ(cache_->Find("a"), nullptr);
  EXPECT_TRUE(cache_->Snapshot().empty());
  EXPECT_EQ(cache_->last_contact(), -absl::InfiniteDuration());
  cache_ = nullptr;  // does not wait for the silent server
}

TEST_F(ObjectCacheTest, EmptyCollectionIsSynced) {
  Start();
  EXPECT_TRUE(cache_->Snapshot().empty());
  server_.Put(CachedPod("a", 1));
  EXPECT_TRUE(NumberBecomes("a", 1));
}

TEST_F(ObjectCacheTest, TrimsListedAndWatchedObjects) {
  server_.Put(CachedPod("a"));
  ObjectCacheOptions options = Options();
  options.trim = [](base::Json& object) { object["metadata"].erase("managedFields"); };
  Start(options);
  server_.Put(CachedPod("b"));
  ASSERT_TRUE(NumberBecomes("b", 0));
  EXPECT_FALSE((*cache_->Find("a"))["metadata"].contains("managedFields"));
  EXPECT_FALSE((*cache_->Find("b"))["metadata"].contains("managedFields"));
}

TEST_F(ObjectCacheTest, ReportsChanges) {
  Collected<std::size_t> sizes;
  ObjectCacheOptions options = Options();
  options.on_change = [&] { sizes.Add(cache_ == nullptr ? 0 : cache_->Snapshot().size()); };
  client_.RunAndWait([&] { cache_ = std::make_unique<ObjectCache>(client_, options); });
  ASSERT_TRUE(Soon([&] { return server_.num_watches() == 1; }));
  server_.Put(CachedPod("a"));
  ASSERT_TRUE(sizes.Await(2));
  server_.SendBookmark();
  server_.Remove("pods", "a");
  ASSERT_TRUE(sizes.Await(3));
  EXPECT_THAT(sizes.Values(), ElementsAre(0, 1, 0));
  cache_ = nullptr;  // its callback uses `sizes`
}

TEST_F(ObjectCacheTest, CallbackMayDestroyTheCache) {
  std::atomic<bool> destroyed = false;
  ObjectCacheOptions options = Options();
  options.on_change = [&] {
    cache_ = nullptr;
    destroyed = true;
  };
  client_.RunAndWait([&] { cache_ = std::make_unique<ObjectCache>(client_, options); });
  ASSERT_TRUE(Soon([&] { return destroyed.load(); }));
  client_.RunAndWait([] {});
  EXPECT_EQ(server_.CountOf(RequestKind::kWatch), 0);
}

TEST_F(ObjectCacheTest, CutWatchContinuesWithoutAList) {
  Start();
  server_.Put(CachedPod("a", 1));
  ASSERT_TRUE(NumberBecomes("a", 1));
  const std::string version = Version("a");
  int num_watches = 1;
  for (const WatchEnd how : {WatchEnd::kCut, WatchEnd::kCutInLine, WatchEnd::kClean}) {
    server_.EndWatches(how);
    ASSERT_TRUE(NthWatchBegins(++num_watches));
    EXPECT_EQ(WatchVersions().back(), version);
  }
  server_.EndWatches(WatchEnd::kCut);
  server_.Put(CachedPod("a", 2));
  EXPECT_TRUE(NumberBecomes("a", 2)) << "changed while no watch was open";
  EXPECT_EQ(server_.CountOf(RequestKind::kList), 1);
}

TEST_F(ObjectCacheTest, BookmarkAdvancesTheVersion) {
  ObjectCacheOptions options = Options();
  options.clock = &clock_;
  Start(options);
  ASSERT_TRUE(PassesEvents());
  for (int i = 0; i < 10; ++i) server_.Put(testing::ApiObject("Job", "job-" + std::to_string(i)));
  clock_.Advance(absl::Seconds(1));
  server_.SendBookmark();
  ASSERT_TRUE(Soon([&] { return cache_->last_contact() == clock_.Monotonic(); }));
  server_.EndWatches(WatchEnd::kCut);
  ASSERT_TRUE(NthWatchBegins(2));
  // The fake server's versions begin at 100; one pod and ten Jobs were put.
  EXPECT_THAT(WatchVersions(), ElementsAre("100", "111"));
  EXPECT_EQ(server_.CountOf(RequestKind::kList), 1);
}

TEST_F(ObjectCacheTest, ListsAgainWhenTheVersionHasExpired) {
  server_.Put(CachedPod("stays", 1));
  server_.Put(CachedPod("vanishes", 1));
  Start();
  // The expiry arrives as an ERROR event after HTTP 200, as from a real cluster.
  server_.SetAway(true);
  server_.Remove("pods", "vanishes");
  server_.Put(CachedPod("new", 2));
  server_.Forget();
  server_.SetAway(false);
  ASSERT_TRUE(NumberBecomes("new", 2));
  EXPECT_THAT(Names(), ElementsAre("new", "stays"));
  EXPECT_EQ(server_.CountOf(RequestKind::kList), 2);
  // In the middle of a watch.
  ASSERT_TRUE(NthWatchBegins(3));
  server_.EndWatches(WatchEnd::kExpired);
  ASSERT_TRUE(NthWatchBegins(4));
  EXPECT_EQ(server_.CountOf(RequestKind::kList), 3);
  // The expiry arrives as HTTP status 410.
  server_.Fail(1, RequestKind::kWatch, {.status = 410});
  server_.EndWatches(WatchEnd::kCut);
  ASSERT_TRUE(NthWatchBegins(6));
  EXPECT_EQ(server_.CountOf(RequestKind::kList), 4);
  server_.Put(CachedPod("stays", 5));
  EXPECT_TRUE(NumberBecomes("stays", 5));
}

TEST_F(ObjectCacheTest, ExpiredPageBeginsTheListAgain) {
  for (int i = 0; i < 5; ++i) server_.Put(CachedPod("pod-" + std::to_string(i)));
  std::atomic<int> num_trimmed = 0;
  ObjectCacheOptions options = Options();
  options.page = 2;
  options.trim = [&](const base::Json&) {
    if (++num_trimmed == 2) {  // the first page has been read
      server_.Remove("pods", "pod-0");
      server_.Fail(1, RequestKind::kList, {.status = 410});
    }
  };
  Start(options);
  EXPECT_THAT(Names(), ElementsAre("pod-1", "pod-2", "pod-3", "pod-4"));
  EXPECT_EQ(server_.CountOf(RequestKind::kList), 4) << "one page, a refusal, two pages";
  cache_ = nullptr;  // its callback uses `num_trimmed`
}

TEST_F(ObjectCacheTest, RetriesOnlyTheFailedPage) {
  for (int i = 0; i < 5; ++i) server_.Put(CachedPod("pod-" + std::to_string(i)));
  std::atomic<int> num_trimmed = 0;
  ObjectCacheOptions options = Options();
  options.page = 2;
  options.trim = [&](const base::Json&) {
    if (++num_trimmed == 2) server_.Fail(2, RequestKind::kList, {.status = 500});
  };
  Start(options);
  EXPECT_EQ(cache_->Snapshot().size(), 5u);
  EXPECT_EQ(num_trimmed, 5) << "no page was read twice";
  EXPECT_EQ(server_.CountOf(RequestKind::kList), 5);
  cache_ = nullptr;  // its callback uses `num_trimmed`
}

TEST_F(ObjectCacheTest, RetriesFailedRequests) {
  server_.Put(CachedPod("a", 1));
  server_.Fail(3, RequestKind::kList, {.status = 500});
  server_.Fail(1, RequestKind::kList, {.kind = ApiFault::kHalfAnswer});
  server_.Fail(1, RequestKind::kList, {.kind = ApiFault::kGarbage});
  server_.Fail(2, RequestKind::kWatch, {.status = 503});
  server_.Fail(1, RequestKind::kWatch, {.status = 403});
  Start();
  EXPECT_EQ(Number("a"), 1);
  EXPECT_EQ(server_.CountOf(RequestKind::kList), 6);
  EXPECT_EQ(server_.CountOf(RequestKind::kWatch), 4);
}

TEST_F(ObjectCacheTest, ListsAgainAfterInvalidOrErrorEvents) {
  Start();
  int num_lists = 1;
  for (const char* line :
       {R"({"type": "ADDED", "object": {}})", R"({"type": "ADDED", "object": 7})", "{",
        R"({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": 7}}})",
        R"({"type": "DELETED", "object": {"metadata": {"resourceVersion": "7"}}})",
        R"({"type": "ERROR", "object": {"code": 500, "message": "x"}})", R"({"type": "ERROR", "object": null})"}) {
    server_.SendOnWatches(std::string(line) + "\n");
    ++num_lists;
    ASSERT_TRUE(NthWatchBegins(num_lists)) << line;
    EXPECT_EQ(server_.CountOf(RequestKind::kList), num_lists) << line;
    ASSERT_TRUE(PassesEvents()) << line;
  }
}

TEST_F(ObjectCacheTest, ListsAgainAfterARefusedOrUnreadableWatch) {
  for (const ApiFault& fault : {ApiFault{.status = 400}, ApiFault{.kind = ApiFault::kGarbage}})
    server_.Fail(1, RequestKind::kWatch, fault);
  Start();
  EXPECT_EQ(server_.CountOf(RequestKind::kList), 3);
}

TEST_F(ObjectCacheTest, WaitsAsLongAsTheServerAsks) {
  for (const RequestKind kind : {RequestKind::kList, RequestKind::kWatch}) {
    server_.Fail(1, kind, {.status = kind == RequestKind::kList ? 429 : 503, .retry_after_s = 1});
    const auto begin = std::chrono::steady_clock::now();
    Start();
    EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
    cache_ = nullptr;
    ASSERT_TRUE(Soon([&] { return server_.num_watches() == 0; }));
  }
}

TEST_F(ObjectCacheTest, PausesAfterAWatchThatEndsAtOnce) {
  ObjectCacheOptions options = Options();
  options.min_pause = options.max_pause = absl::Milliseconds(100);  // jitter shortens it to 50 ms at least
  options.clock = &clock_;
  Start(options);
  const auto begin = std::chrono::steady_clock::now();
  server_.EndWatches(WatchEnd::kClean);
  ASSERT_TRUE(NthWatchBegins(2));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(50));
}

TEST_F(ObjectCacheTest, ExpiredTokenIsReplacedByTheNextOne) {
  server_.Put(CachedPod("a", 1));
  Start();
  server_.AcceptToken("next");
  server_.EndWatches(WatchEnd::kCut);
  ASSERT_TRUE(Soon([&] { return server_.CountOf(RequestKind::kWatch) >= 4; })) << "refused, then retried";
  EXPECT_EQ(Number("a"), 1);
  server_.WriteTokenFile("next");
  server_.Put(CachedPod("a", 2));
  EXPECT_TRUE(NumberBecomes("a", 2));
  EXPECT_EQ(server_.CountOf(RequestKind::kList), 1);
}

TEST_F(ObjectCacheTest, KeepsObjectsAndLastContactWhileTheServerIsUnavailable) {
  server_.Put(CachedPod("a", 1));
  ObjectCacheOptions options = Options();
  options.clock = &clock_;
  Start(options);
  ASSERT_TRUE(PassesEvents());
  const absl::Duration contact = cache_->last_contact();
  EXPECT_EQ(contact, clock_.Monotonic());
  server_.SetAway(true);
  clock_.Advance(absl::Minutes(5));
  server_.Put(CachedPod("a", 2));
  EXPECT_EQ(cache_->last_contact(), contact);
  EXPECT_THAT(Names(), ElementsAre("a", "event"));
  EXPECT_EQ(Number("a"), 1);
  server_.SetAway(false);
  ASSERT_TRUE(NumberBecomes("a", 2));
  ASSERT_TRUE(Soon([&] { return cache_->last_contact() == clock_.Monotonic(); }));
  EXPECT_EQ(server_.CountOf(RequestKind::kList), 1);
}

TEST_F(ObjectCacheTest, OpenedWatchIsAContact) {
  ObjectCacheOptions options = Options();
  options.clock = &clock_;
  Start(options);
  ASSERT_TRUE(PassesEvents());
  clock_.Advance(absl::Minutes(5));
  server_.EndWatches(WatchEnd::kCut);
  EXPECT_TRUE(Soon([&] { return cache_->last_contact() == clock_.Monotonic(); }));
}

TEST_F(ObjectCacheTest, SelectorIsKept) {
  base::Json chosen = CachedPod("chosen");
  chosen["metadata"]["labels"] = {{"nibble.io/job", "j1"}};
  server_.Put(chosen);
  server_.Put(CachedPod("other"));
  ObjectCacheOptions options = Options();
  options.target += "?labelSelector=nibble.io%2Fjob%3Dj1";
  Start(options);
  chosen["metadata"]["name"] = "second";
  server_.Put(CachedPod("another"));
  server_.Put(chosen);
  ASSERT_TRUE(NumberBecomes("second", 0));
  EXPECT_THAT(Names(), ElementsAre("chosen", "second"));
}

TEST_F(ObjectCacheTest, OneClientServesManyCaches) {
  server_.Put(CachedPod("a", 1));
  std::vector<std::unique_ptr<ObjectCache>> caches;
  for (int i = 0; i < 10; ++i) caches.push_back(std::make_unique<ObjectCache>(client_, Options()));
  for (const auto& cache : caches) EXPECT_TRUE(Soon([&] { return cache->Find("a") != nullptr; }));
  ASSERT_TRUE(Soon([&] { return server_.num_watches() == 10; }));
  server_.Remove("pods", "a");
  for (const auto& cache : caches) EXPECT_TRUE(Soon([&] { return cache->Find("a") == nullptr; }));
}

}  // namespace
}  // namespace nibble::kube
