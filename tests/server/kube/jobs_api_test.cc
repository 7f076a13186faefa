#include "server/kube/jobs_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <optional>

#include "server/base/error.h"
#include "tests/server/kube/waiting.h"
#include "tests/support/fake_api_objects.h"
#include "tests/support/fake_api_server.h"

namespace nibble::kube {
namespace {

using testing::ApiObject;
using testing::RequestKind;

class JobsApiTest : public ::testing::Test {
 protected:
  // Makes a call and waits for its answer, or returns its refusal.
  absl::StatusOr<base::Json> Call(const std::function<absl::Status(JobsApi::Done)>& call) {
    std::promise<absl::StatusOr<base::Json>> answer;
    const absl::Status sent = call([&](absl::StatusOr<base::Json> got) { answer.set_value(std::move(got)); });
    return sent.ok() ? answer.get_future().get() : sent;
  }
  absl::StatusOr<base::Json> Create(const base::Json& job) {
    return Call([&](JobsApi::Done done) { return api_.CreateJob(job, std::move(done)); });
  }
  absl::StatusOr<base::Json> GetJob(const std::string& name) {
    return Call([&](JobsApi::Done done) { return api_.GetJob(name, std::move(done)); });
  }
  absl::Status DeleteJob(const std::string& name, const std::string& uid) {
    return Call(
               [&](JobsApi::Done done) { return api_.DeleteJob(name, uid, Propagation::kForeground, std::move(done)); })
        .status();
  }
  absl::Status DeletePod(const std::string& name, const std::string& uid, std::optional<int> grace) {
    return Call([&](JobsApi::Done done) { return api_.DeletePod(name, uid, grace, std::move(done)); }).status();
  }
  absl::StatusOr<base::Json> Events(const std::string& uid) {
    return Call([&](JobsApi::Done done) { return api_.ListEvents(uid, std::move(done)); });
  }

  testing::FakeApiServer server_;
  ApiClient client_{server_.access()};
  JobsApi api_{client_};
};

TEST_F(JobsApiTest, CreatesAndGetsAJob) {
  const auto created = Create(ApiObject("Job", "a-1"));
  ASSERT_TRUE(created.ok()) << created.status();
  const auto got = GetJob("a-1");
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(*got, *created);
  EXPECT_EQ(server_.requests()[0].target, "/apis/batch/v1/namespaces/ml/jobs");
  EXPECT_EQ(server_.requests()[1].target, "/apis/batch/v1/namespaces/ml/jobs/a-1");
}

TEST_F(JobsApiTest, SecondJobOfANameAlreadyExists) {
  ASSERT_TRUE(Create(ApiObject("Job", "a")).ok());
  const absl::Status status = Create(ApiObject("Job", "a")).status();
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_EQ(base::Reason(status), "AlreadyExists");
}

TEST_F(JobsApiTest, DeletesOnlyTheJobWithTheUid) {
  const auto created = Create(ApiObject("Job", "a"));
  ASSERT_TRUE(created.ok()) << created.status();
  const std::string uid = (*created)["metadata"]["uid"];
  EXPECT_TRUE(absl::IsAborted(DeleteJob("a", "other")));
  EXPECT_TRUE(GetJob("a").ok());
  EXPECT_TRUE(DeleteJob("a", uid).ok());
  EXPECT_EQ(server_.requests().back().body, (base::Json{{"kind", "DeleteOptions"},
                                                        {"apiVersion", "v1"},
                                                        {"preconditions", {{"uid", uid}}},
                                                        {"propagationPolicy", "Foreground"}}));
  EXPECT_TRUE(absl::IsNotFound(DeleteJob("a", uid)));
  EXPECT_TRUE(absl::IsNotFound(GetJob("a").status()));
}

TEST_F(JobsApiTest, PodIsNeverDeletedWithoutAGracePeriod) {
  base::Json pod = ApiObject("Pod", "a");
  pod["metadata"]["uid"] = "1-2";
  server_.Put(pod);
  for (const int grace : {0, -1}) EXPECT_TRUE(absl::IsInvalidArgument(DeletePod("a", "1-2", grace)));
  EXPECT_TRUE(server_.requests().empty());
  EXPECT_TRUE(DeletePod("a", "1-2", 1).ok());
  EXPECT_EQ(server_.requests()[0].target, "/api/v1/namespaces/ml/pods/a");
  EXPECT_EQ(server_.requests()[0].body["gracePeriodSeconds"], 1);
  EXPECT_EQ(server_.requests()[0].body["preconditions"]["uid"], "1-2");
  server_.Put(pod);
  EXPECT_TRUE(DeletePod("a", "1-2", std::nullopt).ok());
  EXPECT_FALSE(server_.requests()[1].body.contains("gracePeriodSeconds")) << "the pod's own grace period applies";
}

TEST_F(JobsApiTest, ListsEventsOfOneObject) {
  for (const char* uid : {"u1", "u2"}) {
    base::Json event = ApiObject("Event", std::string("event-of-") + uid);
    event["involvedObject"] = {{"uid", uid}};
    server_.Put(event);
  }
  const auto events = Events("u1");
  ASSERT_TRUE(events.ok()) << events.status();
  ASSERT_EQ((*events)["items"].size(), 1u);
  EXPECT_EQ((*events)["items"][0]["metadata"]["name"], "event-of-u1");
  EXPECT_EQ(server_.requests()[0].target, "/api/v1/namespaces/ml/events?fieldSelector=involvedObject.uid%3Du1");
}

TEST_F(JobsApiTest, RefusedArgumentsAreNotSent) {
  for (const char* bad : {"", "A", "../a", "a/b", "a?b", "a b"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Create(ApiObject("Job", bad)).status())) << bad;
    EXPECT_TRUE(absl::IsInvalidArgument(GetJob(bad).status())) << bad;
    EXPECT_TRUE(absl::IsInvalidArgument(DeleteJob(bad, "u"))) << bad;
    EXPECT_TRUE(absl::IsInvalidArgument(DeleteJob("a", bad))) << bad;
    EXPECT_TRUE(absl::IsInvalidArgument(DeletePod(bad, "u", 1))) << bad;
    EXPECT_TRUE(absl::IsInvalidArgument(DeletePod("a", bad, 1))) << bad;
    EXPECT_TRUE(absl::IsInvalidArgument(Events(bad).status())) << bad;
  }
  for (const base::Json& job : {base::Json(), base::Json(7), base::Json::object(), base::Json{{"metadata", 7}},
                                base::Json{{"metadata", {{"generateName", "a-"}}}}})
    EXPECT_TRUE(absl::IsInvalidArgument(Create(job).status())) << job;
  EXPECT_TRUE(server_.requests().empty());
}

TEST_F(JobsApiTest, TargetsSelectByLabels) {
  EXPECT_EQ(*api_.JobsTarget({}), "/apis/batch/v1/namespaces/ml/jobs");
  EXPECT_EQ(*api_.PodsTarget({{"nibble.io/job", "j1"}}),
            "/api/v1/namespaces/ml/pods?labelSelector=nibble.io%2Fjob%3Dj1");
  EXPECT_TRUE(absl::IsInvalidArgument(api_.PodsTarget({{"a", "b&c"}}).status()));
}

TEST_F(JobsApiTest, AnswerThatIsNotAnObjectIsInternal) {
  server_.Fail(1, RequestKind::kGet, {.kind = testing::ApiFault::kGarbage});
  EXPECT_TRUE(absl::IsInternal(GetJob("a").status()));
  server_.Fail(1, RequestKind::kGet, {.status = 403});
  EXPECT_TRUE(absl::IsPermissionDenied(GetJob("a").status()));
}

}  // namespace
}  // namespace nibble::kube
