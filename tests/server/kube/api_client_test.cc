#include "server/kube/api_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <fstream>
#include <set>
#include <thread>

#include "server/base/error.h"
#include "tests/server/kube/waiting.h"
#include "tests/support/fake_api_objects.h"
#include "tests/support/fake_api_server.h"
#include "tests/support/temp_directory.h"

namespace nibble::kube {
namespace {

namespace asio = boost::asio;
using testing::ApiFault;
using testing::FakeApiServer;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RequestKind;

constexpr char kJobs[] = "/apis/batch/v1/namespaces/ml/jobs";

ApiRequest PostJob(const std::string& name, bool repeatable) {
  ApiRequest request;
  request.method = Method::kPost;
  request.target = kJobs;
  request.body = testing::ApiObject("Job", name);
  request.repeatable = repeatable;
  return request;
}

class ApiClientTest : public ::testing::Test {
 protected:
  FakeApiServer server_;
};

TEST_F(ApiClientTest, SendsJsonAndReadsJson) {
  ApiClient client(server_.access());
  const auto created = Await(client, PostJob("a", /*repeatable=*/false));
  ASSERT_TRUE(created.ok()) << created.status();
  EXPECT_EQ(created->status, 201);
  const auto got = Get(client, std::string(kJobs) + "/a");
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(StatusOf(*got).ok());
  EXPECT_EQ(got->json["metadata"]["name"], "a");
  EXPECT_EQ(got->text, "");
  ApiRequest remove;
  remove.method = Method::kDelete;
  remove.target = std::string(kJobs) + "/a";
  remove.body = base::Json{{"preconditions", {{"uid", got->json["metadata"]["uid"]}}}};
  EXPECT_EQ(Await(client, remove)->status, 200);
  EXPECT_EQ(Get(client, std::string(kJobs) + "/a")->status, 404);
  EXPECT_EQ(server_.requests()[0].authorization, "Bearer secret-token");
  EXPECT_EQ(server_.requests()[2].body, *remove.body);
}

TEST_F(ApiClientTest, KeepsItsConnection) {
  ApiClient client(server_.access());
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Get(client, kJobs)->status, 200);
  EXPECT_EQ(server_.num_connections(), 1);
}

TEST_F(ApiClientTest, ConcurrentRequestsHaveConnectionsOfTheirOwn) {
  ApiClient client(server_.access());
  Collected<int> statuses;
  for (int i = 0; i < 20; ++i) {
    client.Request({.target = kJobs}, [&](absl::StatusOr<ApiAnswer> got) { statuses.Add(got.ok() ? got->status : 0); });
  }
  ASSERT_TRUE(statuses.Await(20));
  EXPECT_THAT(statuses.Values(), ::testing::Each(200));
}

// Requests that differ by their targets.
class CrowdedApiClientTest : public ApiClientTest {
 protected:
  static constexpr int kMax = static_cast<int>(ApiClient::kMaxRequests);

  static std::string Target(int i) { return std::string(kJobs) + "/job-" + std::to_string(i); }
  void Send(ApiClient& client, int begin, int end, absl::Duration timeout = absl::Minutes(5)) {
    for (int i = begin; i < end; ++i) {
      client.Request({.target = Target(i), .timeout = timeout},
                     [&](const absl::StatusOr<ApiAnswer>& got) { ended_.Add(got.status()); });
    }
  }
  bool Holds(int n) {
    return testing_support::Soon([&] { return server_.num_held() == n; });
  }
  std::set<std::string> Received() const {
    std::set<std::string> targets;
    for (const auto& request : server_.requests()) {
      if (request.kind == RequestKind::kGet) targets.insert(request.target);
    }
    return targets;
  }

  Collected<absl::Status> ended_;
};

TEST_F(CrowdedApiClientTest, RequestsAboveTheLimitWaitInOrder) {
  ApiClient client(server_.access());
  server_.Hold();
  Send(client, 0, 100);
  std::set<std::string> wanted;
  for (int i = 0; i < kMax; ++i) wanted.insert(Target(i));
  ASSERT_TRUE(Holds(kMax));
  EXPECT_EQ(Received(), wanted);
  const auto watch = client.StartWatch({.target = kJobs, .resource_version = "0", .on_event = {}, .on_end = {}});
  EXPECT_TRUE(testing_support::Soon([&] { return server_.num_watches() == 1; })) << "watches do not wait";
  for (int i = kMax; i < 100; ++i) {
    server_.Release(1);
    wanted.insert(Target(i));
    ASSERT_TRUE(testing_support::Soon([&] { return server_.CountOf(RequestKind::kGet) == i + 1; }));
    ASSERT_TRUE(Received() == wanted) << i;
    ASSERT_TRUE(Holds(kMax));
  }
  server_.Release(kMax);
  ASSERT_TRUE(ended_.Await(100));
  EXPECT_THAT(ended_.Values(), ::testing::Each(absl::OkStatus()));
  EXPECT_EQ(server_.num_connections(), kMax + 1) << "with that of the watch";
}

TEST_F(CrowdedApiClientTest, WaitingRequestEndsAtItsDeadlineAndIsNotSent) {
  ApiClient client(server_.access());
  server_.Hold();
  Send(client, 0, kMax);
  ASSERT_TRUE(Holds(kMax));
  Send(client, kMax, kMax + 1, absl::Nanoseconds(1));
  Send(client, kMax + 1, kMax + 2);
  server_.Release(1);
  ASSERT_TRUE(ended_.Await(2));
  EXPECT_TRUE(absl::IsDeadlineExceeded(ended_.Values()[1])) << ended_.Values()[1];
  EXPECT_THAT(std::string(ended_.Values()[1].message()), HasSubstr("waited 1ns for others"));
  ASSERT_TRUE(Holds(kMax)) << "the place is free for the next request";
  EXPECT_FALSE(Received().contains(Target(kMax)));
  EXPECT_TRUE(Received().contains(Target(kMax + 1)));
}

TEST_F(CrowdedApiClientTest, RequestsThatFailAtOnceFreeTheirPlaces) {
  ClusterAccess access = server_.access();
  access.token_file = "/nonexistent/token";
  ApiClient client(access);
  Send(client, 0, 10'000);
  ASSERT_TRUE(ended_.Await(10'000));
  EXPECT_TRUE(absl::IsNotFound(ended_.Values().back())) << ended_.Values().back();
}

TEST_F(CrowdedApiClientTest, WaitingRequestsEndWithTheClient) {
  server_.Hold();
  {
    ApiClient client(server_.access());
    Send(client, 0, 100);
    ASSERT_TRUE(Holds(kMax));
  }
  ASSERT_EQ(ended_.Values().size(), 100u);
  for (const absl::Status& status : ended_.Values()) EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_EQ(server_.CountOf(RequestKind::kGet), kMax);
}

TEST_F(ApiClientTest, StaleConnectionIsReplacedForARepeatableRequest) {
  ApiClient client(server_.access());
  ASSERT_EQ(Get(client, kJobs)->status, 200);
  server_.CutConnections();
  EXPECT_EQ(Get(client, kJobs)->status, 200);
  server_.CutConnections();
  EXPECT_EQ(Await(client, PostJob("a", /*repeatable=*/true))->status, 201);
  server_.CutConnections();
  const absl::Status lost = Await(client, PostJob("b", /*repeatable=*/false)).status();
  EXPECT_TRUE(absl::IsUnavailable(lost)) << lost;
  EXPECT_EQ(server_.CountOf(RequestKind::kCreate), 1);
  EXPECT_EQ(Await(client, PostJob("b", /*repeatable=*/false))->status, 201) << "on a new connection";
}

TEST_F(ApiClientTest, RequestIsRepeatedOnlyOnce) {
  Collected<absl::Status> ended;
  ApiClient client(server_.access());
  ASSERT_EQ(Get(client, kJobs)->status, 200);
  server_.Fail(3, RequestKind::kList, {.kind = ApiFault::kSilent});
  client.Request({.target = kJobs}, [&](const absl::StatusOr<ApiAnswer>& got) { ended.Add(got.status()); });
  for (const int num_requests : {2, 3}) {  // the request, its repetition
    ASSERT_TRUE(testing_support::Soon([&] { return server_.CountOf(RequestKind::kList) == num_requests; }));
    server_.CutConnections();
  }
  ASSERT_TRUE(ended.Await(1));
  EXPECT_TRUE(absl::IsUnavailable(ended.Values()[0])) << ended.Values()[0];
  EXPECT_EQ(server_.CountOf(RequestKind::kList), 3);
}

TEST_F(ApiClientTest, ServerThatIsAwayIsUnavailable) {
  ApiClient client(server_.access());
  ASSERT_EQ(Get(client, kJobs)->status, 200);
  server_.SetAway(true);
  EXPECT_TRUE(absl::IsUnavailable(Get(client, kJobs).status()));
  server_.SetAway(false);
  EXPECT_EQ(Get(client, kJobs)->status, 200);
}

TEST_F(ApiClientTest, TokenIsReadForEachRequest) {
  ApiClient client(server_.access());
  ASSERT_EQ(Get(client, kJobs)->status, 200);
  server_.AcceptToken("rotated");
  const auto refused = Get(client, kJobs);
  ASSERT_TRUE(refused.ok()) << refused.status();
  EXPECT_TRUE(absl::IsUnauthenticated(StatusOf(*refused))) << StatusOf(*refused);
  EXPECT_EQ(base::Reason(StatusOf(*refused)), "Unauthorized");
  EXPECT_THAT(StatusOf(*refused).ToString(), Not(HasSubstr("secret-token")));
  server_.WriteTokenFile("rotated");
  EXPECT_EQ(Get(client, kJobs)->status, 200);
  EXPECT_EQ(server_.num_connections(), 1);
}

TEST_F(ApiClientTest, AuthorityIsReadForEachConnection) {
  ClusterAccess access = server_.access();
  const testing::TempDirectory temp;
  access.ca_file = temp / "ca.crt";
  ApiClient client(access);
  EXPECT_TRUE(absl::IsNotFound(Get(client, kJobs).status()));
  std::ofstream(access.ca_file) << "no certificate";
  EXPECT_TRUE(absl::IsUnavailable(Get(client, kJobs).status()));
  std::ofstream(access.ca_file) << std::ifstream(server_.OtherAuthority()).rdbuf();
  const absl::Status other = Get(client, kJobs).status();
  EXPECT_TRUE(absl::IsUnavailable(other)) << other;
  EXPECT_THAT(std::string(other.message()), HasSubstr("certificate verify failed"));
  std::ofstream(access.ca_file) << std::ifstream(server_.OtherAuthority()).rdbuf()
                                << std::ifstream(server_.access().ca_file).rdbuf();
  EXPECT_EQ(Get(client, kJobs)->status, 200) << "one of two authorities";
  EXPECT_EQ(server_.num_connections(), 1);
}

TEST_F(ApiClientTest, CertificateMustNameTheHost) {
  ClusterAccess access = server_.access();
  access.host = "localhost";
  ApiClient by_name(access);
  EXPECT_EQ(Get(by_name, kJobs)->status, 200);

  FakeApiServer elsewhere("IP:127.0.0.2,DNS:example.com");
  ApiClient client(elsewhere.access());
  EXPECT_TRUE(absl::IsUnavailable(Get(client, kJobs).status()));
  access = elsewhere.access();
  access.host = "localhost";
  ApiClient by_wrong_name(access);
  EXPECT_TRUE(absl::IsUnavailable(Get(by_wrong_name, kJobs).status()));
  EXPECT_TRUE(elsewhere.requests().empty());
}

TEST_F(ApiClientTest, UnknownHostIsUnavailable) {
  ClusterAccess access = server_.access();
  access.host = std::string(80, 'x');  // a label longer than DNS permits, so that no server is asked
  ApiClient client(access);
  const absl::Status status = Get(client, kJobs).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot look up the host " + access.host));
}

TEST_F(ApiClientTest, PlaintextServerIsUnavailable) {
  asio::io_context io;
  asio::ip::tcp::acceptor acceptor(io, {asio::ip::make_address("127.0.0.1"), 0});
  std::string received;
  std::thread plain([&] {
    asio::ip::tcp::socket socket = acceptor.accept();
    boost::system::error_code ignored;
    asio::write(socket, asio::buffer(std::string("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")), ignored);
    asio::read(socket, asio::dynamic_buffer(received), ignored);
  });
  ClusterAccess access = server_.access();
  access.port = std::to_string(acceptor.local_endpoint().port());
  {
    ApiClient client(access);
    const absl::Status status = Get(client, kJobs).status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  }
  plain.join();
  EXPECT_THAT(received, Not(HasSubstr("secret-token")));
  acceptor.close();
  ApiClient client(access);
  EXPECT_TRUE(absl::IsUnavailable(Get(client, kJobs).status())) << "no server";
}

TEST_F(ApiClientTest, SilentServerExceedsTheDeadline) {
  ApiClient client(server_.access());
  ASSERT_EQ(Get(client, kJobs)->status, 200);
  server_.Fail(1, RequestKind::kList, {.kind = ApiFault::kSilent});
  const absl::Status late = Await(client, {.target = kJobs, .timeout = absl::Milliseconds(50)}).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_THAT(std::string(late.message()), HasSubstr("did not answer within 50ms"));
  EXPECT_EQ(Get(client, kJobs)->status, 200);
  EXPECT_EQ(server_.CountOf(RequestKind::kList), 3) << "not repeated";
}

TEST_F(ApiClientTest, DestructionDoesNotWaitForASilentServer) {
  Collected<absl::Status> ended;
  {
    ApiClient client(server_.access());
    server_.Fail(3, RequestKind::kList, {.kind = ApiFault::kSilent});
    for (int i = 0; i < 3; ++i) {
      client.Request({.target = kJobs, .timeout = absl::Hours(1)},
                     [&](const absl::StatusOr<ApiAnswer>& got) { ended.Add(got.status()); });
    }
    ASSERT_TRUE(testing_support::Soon([&] { return server_.CountOf(RequestKind::kList) == 3; }));
  }
  ASSERT_EQ(ended.Values().size(), 3u) << "each call has ended";
  for (const absl::Status& status : ended.Values()) EXPECT_TRUE(absl::IsCancelled(status)) << status;
}

TEST_F(ApiClientTest, DestructionDoesNotWaitForAHandshake) {
  asio::io_context io;
  const asio::ip::tcp::acceptor acceptor(io, {asio::ip::make_address("127.0.0.1"), 0});  // accepts no connection
  ClusterAccess access = server_.access();
  access.port = std::to_string(acceptor.local_endpoint().port());
  Collected<absl::Status> ended;
  {
    ApiClient client(access);
    client.Request({.target = kJobs, .timeout = absl::Hours(1)},
                   [&](const absl::StatusOr<ApiAnswer>& got) { ended.Add(got.status()); });
    client.RunAndWait([] {});
  }
  ASSERT_EQ(ended.Values().size(), 1u);
  EXPECT_TRUE(absl::IsCancelled(ended.Values()[0])) << ended.Values()[0];
}

TEST_F(ApiClientTest, HalfAnAnswerIsUnavailable) {
  ApiClient client(server_.access());
  server_.Fail(1, RequestKind::kList, {.kind = ApiFault::kHalfAnswer});
  const absl::Status status = Get(client, kJobs).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

TEST_F(ApiClientTest, BodyThatIsNotJsonIsReturnedAsText) {
  ApiClient client(server_.access());
  server_.Fail(1, RequestKind::kList, {.kind = ApiFault::kGarbage});
  const auto answer = Get(client, kJobs);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_TRUE(answer->json.is_null());
  EXPECT_EQ(answer->text, "<html>\n");
}

TEST_F(ApiClientTest, RetryAfterIsRead) {
  ApiClient client(server_.access());
  server_.Fail(1, RequestKind::kList, {.status = 429, .retry_after_s = 7});
  auto answer = Get(client, kJobs);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->retry_after, absl::Seconds(7));
  EXPECT_TRUE(absl::IsResourceExhausted(StatusOf(*answer)));
  server_.Fail(1, RequestKind::kList, {.status = 503, .retry_after_s = 2000000000});
  EXPECT_EQ(Get(client, kJobs)->retry_after, absl::Minutes(10)) << "limited";
  EXPECT_EQ(Get(client, kJobs)->retry_after, std::nullopt);
}

TEST_F(ApiClientTest, AnswersAbove16MibAreRefused) {
  base::Json large = testing::ApiObject("Job", "large");
  large["spec"]["filler"] = std::string(9 << 20, 'x');
  server_.Put(large);
  ApiClient client(server_.access());
  EXPECT_EQ(Get(client, kJobs)->status, 200);
  large["metadata"]["name"] = "larger";
  server_.Put(large);
  const absl::Status status = Get(client, kJobs).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(Get(client, std::string(kJobs) + "/none")->status, 404) << "on a new connection";
}

TEST_F(ApiClientTest, CallbacksMaySendRequests) {
  ApiClient client(server_.access());
  Collected<int> statuses;
  client.Request({.target = kJobs}, [&](const absl::StatusOr<ApiAnswer>& first) {
    statuses.Add(first->status);
    client.RunAndWait([&] { statuses.Add(-1); });
    client.RunAfter(absl::Milliseconds(1), [&] {
      client.Request({.target = kJobs}, [&](const absl::StatusOr<ApiAnswer>& got) { statuses.Add(got->status); });
    });
  });
  ASSERT_TRUE(statuses.Await(3));
  EXPECT_THAT(statuses.Values(), ::testing::ElementsAre(200, -1, 200));
}

TEST(StatusOfTest, HasACodeForEachHttpStatus) {
  const auto status_of = [](int status, const std::string& reason = "") {
    ApiAnswer answer;
    answer.status = status;
    answer.phrase = "Phrase";
    if (!reason.empty()) answer.json = {{"kind", "Status"}, {"reason", reason}, {"message", "it happened"}};
    return StatusOf(answer);
  };
  EXPECT_TRUE(status_of(200).ok());
  EXPECT_TRUE(status_of(202).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(status_of(400)));
  EXPECT_TRUE(absl::IsUnauthenticated(status_of(401)));
  EXPECT_TRUE(absl::IsPermissionDenied(status_of(403, "Forbidden")));
  EXPECT_TRUE(absl::IsNotFound(status_of(404, "NotFound")));
  EXPECT_TRUE(absl::IsAlreadyExists(status_of(409, "AlreadyExists")));
  EXPECT_TRUE(absl::IsAborted(status_of(409, "Conflict")));
  EXPECT_TRUE(absl::IsOutOfRange(status_of(410, "Expired")));
  EXPECT_TRUE(absl::IsInvalidArgument(status_of(422, "Invalid")));
  EXPECT_TRUE(absl::IsResourceExhausted(status_of(429, "TooManyRequests")));
  for (const int status : {301, 500, 502, 503, 504}) EXPECT_TRUE(absl::IsUnavailable(status_of(status))) << status;
  EXPECT_EQ(status_of(409, "Conflict").message(), "the API server answered 409 Phrase (Conflict): it happened");
  EXPECT_EQ(base::Reason(status_of(409, "Conflict")), "Conflict");
  EXPECT_EQ(status_of(502).message(), "the API server answered 502 Phrase");
}

TEST(StatusOfTest, LimitsTheServersText) {
  ApiAnswer answer;
  answer.status = 502;
  answer.text = std::string(1 << 20, 'x');
  EXPECT_LT(StatusOf(answer).message().size(), 600u);
}

}  // namespace
}  // namespace nibble::kube
