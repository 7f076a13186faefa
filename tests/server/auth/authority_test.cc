// Tests the pure function that decides whether a caller may call a method, and the token file (docs/faults.md, S1, S2,
// S10, S11).
#include "server/auth/authority.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <set>
#include <string_view>

#include "google/longrunning/operations.pb.h"
#include "inference/grpc_service.pb.h"
#include "nibble/internal/v1/trainer_report.pb.h"
#include "nibble/v1/dataset_service.pb.h"
#include "nibble/v1/fine_tune_service.pb.h"
#include "nibble/v1/inference_service.pb.h"
#include "nibble/v1/model_service.pb.h"
#include "nibble/v1/server_service.pb.h"
#include "nibble/v1/upload_service.pb.h"
#include "server/base/constant_time.h"
#include "server/base/error.h"
#include "server/base/hooked_files.h"
#include "server/base/sha256.h"
#include "server/rpc/methods.h"
#include "tests/support/soon.h"
#include "tests/support/temp_directory.h"

namespace nibble::auth {
namespace {

using base::Reason;
using ::testing::HasSubstr;
using ::testing::Not;

const absl::Time now = absl::FromUnixSeconds(1'900'000'000);  // 2030-03-17T17:46:40Z

std::string Line(const std::string& name, const std::string& role, const std::string& token,
                 const std::string& more = "") {
  return R"({"name": ")" + name + R"(", "role": ")" + role + R"(", "token_sha256": ")" + base::Sha256Hex(token) + "\"" +
         more + "}\n";
}

AuthPolicy Policy(const std::string& text) {
  auto table = PrincipalTable::Parse(text);
  EXPECT_TRUE(table.ok()) << table.status();
  AuthPolicy policy;
  policy.principals = std::make_shared<const PrincipalTable>(*std::move(table));
  return policy;
}

Caller With(const std::string& token) {
  Caller caller;
  caller.authorization = {"Bearer " + token};
  return caller;
}

Caller WithHeaders(const std::vector<std::string>& values) {
  Caller caller;
  caller.authorization = values;
  return caller;
}

std::string Outcome(const absl::StatusOr<Principal>& principal) {
  return principal.ok()
             ? principal->name
             : std::string(absl::StatusCodeToString(principal.status().code())) + " " + Reason(principal.status());
}

const AuthPolicy& AllRoles() {
  static const AuthPolicy policy =
      Policy(Line("viewer", "viewer", "v") + Line("infer", "infer", "i") + Line("train", "train", "t") +
             Line("operator", "operator", "o") + Line("admin", "admin", "a"));
  return policy;
}

// A method without a rule would refuse every caller. The table must have every method, and none that was removed.
TEST(AuthMethodsTest, S1EveryMethodOfEveryServiceHasOneRule) {
  std::set<std::string> methods;
  std::vector<std::string> services(std::begin(rpc::kServices), std::end(rpc::kServices));
  services.push_back("nibble.internal.v1.TrainerReportService");
  services.push_back("inference.GRPCInferenceService");
  // These calls link the messages' files in: the pool below finds only services of linked files.
  internal::v1::Hello::descriptor();
  v1::ListDatasetsRequest::descriptor();
  v1::ListJobsRequest::descriptor();
  v1::ListModelsRequest::descriptor();
  v1::GenerateRequest::descriptor();
  v1::GetServerInfoRequest::descriptor();
  v1::GetUploadRequest::descriptor();
  google::longrunning::Operation::descriptor();
  inference::ServerLiveRequest::descriptor();
  for (const std::string& name : services) {
    const auto* service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name);
    ASSERT_NE(service, nullptr) << name;
    for (int i = 0; i < service->method_count(); ++i) methods.insert(name + "/" + service->method(i)->name());
  }
  for (const char* standard : {"grpc.health.v1.Health/Check", "grpc.health.v1.Health/Watch",
                               "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"}) {
    methods.insert(standard);
  }
  std::set<std::string> rules;
  for (const MethodRule& rule : MethodRules())
    EXPECT_TRUE(rules.insert(std::string(rule.method)).second) << rule.method;
  EXPECT_EQ(rules, methods);
}

TEST(DecideTest, S1NoMethodIsAllowedWithoutAValidToken) {
  const AuthPolicy policy =
      Policy(Line("old", "admin", "expired", R"(, "expires": "2030-03-17T17:46:40Z")") + Line("a", "admin", "good"));
  const std::vector<std::pair<Caller, std::string>> callers = {
      {Caller{}, "TOKEN_MISSING"},
      {With("bad"), "TOKEN_INVALID"},
      {With("expired"), "TOKEN_INVALID"},
      {With(""), "TOKEN_INVALID"},
      {With(std::string(kMaxTokenBytes + 1, 'x')), "TOKEN_INVALID"},
      {WithHeaders({"Basic Z29vZA=="}), "TOKEN_INVALID"},
      {WithHeaders({"good"}), "TOKEN_INVALID"},
      {WithHeaders({"Bearer good", "Bearer good"}), "TOKEN_INVALID"},
      {WithHeaders({base::Sha256Hex("good")}), "TOKEN_INVALID"},
      {With(base::Sha256Hex("good")), "TOKEN_INVALID"},  // the file has this digest, which is not a token
      {Caller{{}, {"uri:spiffe://nobody"}, /*peer=*/"", /*trainer_listener=*/false}, "TOKEN_MISSING"}};
  int cases = 0;
  for (const auto& [caller, reason] : callers) {
    for (const MethodRule& rule : MethodRules()) {
      const auto principal = Decide(policy, std::string("/") + std::string(rule.method), caller, now);
      EXPECT_EQ(Outcome(principal), "UNAUTHENTICATED " + reason) << rule.method;
      EXPECT_THAT(std::string(principal.status().message()), Not(HasSubstr("expired")));
      ++cases;
    }
    EXPECT_EQ(Outcome(Decide(policy, "/nibble.v1.NoSuch/Method", caller, now)), "UNAUTHENTICATED " + reason);
  }
  EXPECT_GT(cases, 500);
  EXPECT_EQ(Outcome(Decide(policy, "nibble.v1.ModelService/ListModels", With("good"), now)), "a");
}

TEST(DecideTest, S2EveryRoleMayCallExactlyItsMethods) {
  const char* const tokens[] = {"v", "i", "t", "o", "a"};
  for (const MethodRule& rule : MethodRules()) {
    for (int role = 0; role < 5; ++role) {
      const auto principal = Decide(AllRoles(), rule.method, With(tokens[role]), now);
      const bool may = rule.access != Access::kTrainer && role >= static_cast<int>(rule.role);
      EXPECT_EQ(Outcome(principal), may ? Name(static_cast<Role>(role)) : "PERMISSION_DENIED ROLE")
          << rule.method << " " << role;
      if (!may) {
        EXPECT_EQ(base::ReasonMetadata(principal.status())["needed"],
                  rule.access == Access::kTrainer ? "trainer" : Name(rule.role));
      }
    }
  }
  EXPECT_EQ(Outcome(Decide(AllRoles(), "/nibble.v1.NoSuch/Method", With("a"), now)), "UNIMPLEMENTED ");
  EXPECT_EQ(Outcome(Decide(AllRoles(), "", With("a"), now)), "UNIMPLEMENTED ");
}

// The purpose of the roles, checked independently of the table.
TEST(DecideTest, S2RolesMatchTheirNames) {
  const auto may = [](const char* token, const std::string& method) {
    return Decide(AllRoles(), "nibble.v1." + method, With(token), now).ok();
  };
  EXPECT_TRUE(may("v", "FineTuneService/WatchJob"));
  EXPECT_TRUE(may("v", "FineTuneService/WatchJobLogs"));
  EXPECT_FALSE(may("v", "InferenceService/Generate"));
  EXPECT_FALSE(may("v", "DatasetService/PreviewDataset"));
  EXPECT_TRUE(may("i", "InferenceService/ChatStream"));
  EXPECT_FALSE(may("i", "FineTuneService/CreateJob"));
  EXPECT_FALSE(may("i", "ModelService/DownloadArtifact"));
  EXPECT_TRUE(may("t", "ModelService/ImportModel"));
  EXPECT_FALSE(may("t", "ServerService/Drain"));
  EXPECT_TRUE(may("o", "FineTuneService/CreateJob"));
  EXPECT_FALSE(may("o", "ServerService/Drain"));
  EXPECT_TRUE(may("a", "ServerService/Drain"));
}

// C4 (docs/faults.md).
TEST(DecideTest, PrioritiesAboveZeroNeedTheRoleOperator) {
  for (const Role role : {Role::kViewer, Role::kInfer, Role::kTrain, Role::kOperator, Role::kAdmin}) {
    const Principal caller{"ann", role, ""};
    EXPECT_TRUE(CheckPriority(caller, "priority", 0).ok());
    EXPECT_TRUE(CheckPriority(caller, "priority", -100).ok());
    const absl::Status above = CheckPriority(caller, "priority", 1);
    EXPECT_EQ(above.ok(), role >= Role::kOperator);
    if (above.ok()) continue;
    EXPECT_TRUE(absl::IsPermissionDenied(above));
    EXPECT_EQ(base::Reason(above), "ROLE");
    EXPECT_EQ(base::ReasonMetadata(above)["needed"], "operator");
    EXPECT_THAT(std::string(above.message()), HasSubstr("priority: is 1, the role "));
  }
}

TEST(DecideTest, SocketOfTrainersServesOnlyReports) {
  Caller trainer;
  trainer.trainer_listener = true;
  for (const AuthPolicy& policy : {AuthPolicy{}, AllRoles()}) {
    for (const MethodRule& rule : MethodRules()) {
      EXPECT_EQ(Decide(policy, rule.method, trainer, now).ok(), rule.access == Access::kTrainer) << rule.method;
    }
    Caller with_token = With("a");
    with_token.trainer_listener = true;
    EXPECT_EQ(Outcome(Decide(policy, "nibble.v1.ModelService/ListModels", with_token, now)), "PERMISSION_DENIED ROLE");
  }
}

TEST(DecideTest, HealthAndReflectionNeedATokenUnlessOpened) {
  AuthPolicy policy = AllRoles();
  const auto outcome = [&](const char* method) { return Outcome(Decide(policy, method, Caller{}, now)); };
  EXPECT_EQ(outcome("grpc.health.v1.Health/Check"), "UNAUTHENTICATED TOKEN_MISSING");
  policy.health_without_token = true;
  EXPECT_EQ(outcome("grpc.health.v1.Health/Check"), "anyone");
  EXPECT_EQ(outcome("grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"), "UNAUTHENTICATED TOKEN_MISSING");
  EXPECT_EQ(outcome("nibble.v1.ServerService/GetServerInfo"), "UNAUTHENTICATED TOKEN_MISSING");
  policy.reflection_without_token = true;
  EXPECT_EQ(outcome("grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"), "anyone");
}

TEST(DecideTest, CertificateGivesARoleButDoesNotReplaceAWrongToken) {
  const AuthPolicy policy = Policy(R"({"name": "web", "role": "infer", "san": "uri:spiffe://cluster/ns/web"})"
                                   "\n" +
                                   Line("a", "admin", "good"));
  Caller caller;
  caller.certificate_names = {"dns:web.example", "uri:spiffe://cluster/ns/web"};
  EXPECT_EQ(Outcome(Decide(policy, "nibble.v1.InferenceService/Generate", caller, now)), "web");
  EXPECT_EQ(Outcome(Decide(policy, "nibble.v1.FineTuneService/CreateJob", caller, now)), "PERMISSION_DENIED ROLE");
  caller.authorization = {"bearer good"};  // the scheme is case-insensitive (RFC 9110 11.1)
  EXPECT_EQ(Outcome(Decide(policy, "nibble.v1.FineTuneService/CreateJob", caller, now)), "a");
  caller.authorization = {"Bearer bad"};
  EXPECT_EQ(Outcome(Decide(policy, "nibble.v1.InferenceService/Generate", caller, now)),
            "UNAUTHENTICATED TOKEN_INVALID");
  Caller other;
  other.certificate_names = {"dns:spiffe://cluster/ns/web", "uri:spiffe://cluster/ns/web2"};
  EXPECT_EQ(Outcome(Decide(policy, "nibble.v1.InferenceService/Generate", other, now)),
            "UNAUTHENTICATED TOKEN_MISSING");
}

TEST(DecideTest, WithoutATokenFileEveryCallerIsAllowed) {
  EXPECT_EQ(Outcome(Decide(AuthPolicy{}, "nibble.v1.ServerService/Drain", Caller{}, now)), "local");
}

// S10: the comparison reads both values entirely, whatever it finds. Its time is not measured, because nanoseconds on a
// busy machine prove nothing: only its results are checked.
TEST(PrincipalTableTest, S10ComparisonAcceptsOnlyEqualTokens) {
  EXPECT_TRUE(base::EqualInConstantTime("", ""));
  EXPECT_TRUE(base::EqualInConstantTime("abc", "abc"));
  EXPECT_FALSE(base::EqualInConstantTime("abc", "abd"));
  EXPECT_FALSE(base::EqualInConstantTime("xbc", "abc"));
  EXPECT_FALSE(base::EqualInConstantTime("abc", "abcd"));
  const auto table = PrincipalTable::Parse(Line("first", "viewer", "1") + Line("last", "admin", "2"));
  ASSERT_TRUE(table.ok());
  EXPECT_EQ(table->FindToken("1")->principal.name, "first");
  EXPECT_EQ(table->FindToken("2")->principal.name, "last");
  EXPECT_EQ(table->FindToken("3"), nullptr);
}

TEST(PrincipalTableTest, NamesTheWrongLineWithoutItsSecret) {
  const std::string secret = "nbl_verysecret";
  const std::vector<std::pair<std::string, std::string>> bad = {
      {secret, "is not a JSON object"},
      {R"({"name": "a", "role": "admin", "token": ")" + secret + "\"}", "unknown key"},
      {R"({"name": "a", "role": "root", "token_sha256": ")" + secret + "\"}", "role"},
      {R"({"name": "a", "role": "admin", "token_sha256": ")" + secret + "\"}", "64 lower-case hex digits"},
      {R"({"name": "a", "role": "admin"})", "token_sha256 or san"},
      {R"({"name": "local", "role": "admin", "token_sha256": ")" + secret + "\"}", "the name local is reserved"},
      {R"({"name": "a\nb", "role": "admin", "san": "uri:x"})", "name"},
      {R"({"name": "a", "role": "admin", "san": "x"})", "san"},
      {R"({"name": "a", "role": "admin", "san": "uri:x", "expires": "tomorrow"})", "expires"},
      {R"({"name": "a", "role": "admin", "san": "uri:x", "tenant": "../b"})", "tenant"},
      {R"({"name": "a", "role": 3, "san": "uri:x"})", "role"},
      {Line("a", "admin", "same") + Line("b", "viewer", "same"), "of an earlier line"}};
  for (const auto& [text, what] : bad) {
    const auto table = PrincipalTable::Parse("# the operators\n\n" + text);
    ASSERT_EQ(table.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(table.status().message()), HasSubstr("line ")) << text;
    EXPECT_THAT(std::string(table.status().message()), HasSubstr(what));
    EXPECT_THAT(std::string(table.status().message()), Not(HasSubstr(secret)));
  }
}

class AuthorityTest : public ::testing::Test {
 protected:
  AuthorityTest() : path_(directory_.path() + "/tokens") {}
  void Write(const std::string& text) {
    ASSERT_TRUE(base::WriteFileAtomically(base::RealFileSystem(), path_, text).ok());
  }
  absl::StatusOr<std::unique_ptr<Authority>> Open() {
    return Authority::Open(
        base::RealFileSystem(), clock_,
        {.token_file = path_, .count_refusal = [this](std::string_view reason) { ++refusals_[std::string(reason)]; }});
  }
  std::string Ask(Authority& authority, const std::string& token) {
    return Outcome(authority.Admit("/nibble.v1.ModelService/ListModels", With(token)));
  }

  testing::TempDirectory directory_;
  const std::string path_;
  base::FakeClock clock_{now};
  std::map<std::string, int> refusals_;  // reason -> how many
};

TEST_F(AuthorityTest, TakesAChangedFileAndKeepsTheLastGoodOne) {
  Write(Line("one", "viewer", "1"));
  auto opened = Open();
  ASSERT_TRUE(opened.ok()) << opened.status();
  Authority& authority = **opened;
  EXPECT_EQ(Ask(authority, "1"), "one");
  Write(Line("two", "viewer", "2"));
  clock_.Advance(absl::Seconds(2));
  EXPECT_EQ(Ask(authority, "2"), "two");
  EXPECT_EQ(Ask(authority, "1"), "UNAUTHENTICATED TOKEN_INVALID");  // withdrawn
  Write("half a li");
  clock_.Advance(absl::Seconds(2));
  EXPECT_EQ(Ask(authority, "2"), "two");
  ASSERT_TRUE(base::RealFileSystem().RemoveAll(path_).ok());
  clock_.Advance(absl::Seconds(2));
  EXPECT_EQ(Ask(authority, "2"), "two");
  Write(Line("two", "viewer", "2", R"(, "expires": "2030-03-18T00:00:00Z")"));
  clock_.Advance(absl::Seconds(2));
  EXPECT_EQ(Ask(authority, "2"), "two");
  clock_.Advance(absl::Hours(24));
  EXPECT_EQ(Ask(authority, "2"), "UNAUTHENTICATED TOKEN_INVALID");
  Write("# nobody\n");
  clock_.Advance(absl::Seconds(2));
  EXPECT_EQ(Ask(authority, "2"), "UNAUTHENTICATED TOKEN_INVALID");  // an empty table is valid
  EXPECT_EQ(refusals_["TOKEN_INVALID"], 3);
}

TEST_F(AuthorityTest, ReloadReadsTheFileAtOnce) {  // C12
  Write(Line("one", "viewer", "1"));
  auto opened = Open();
  ASSERT_TRUE(opened.ok()) << opened.status();
  Authority& authority = **opened;
  EXPECT_EQ(Ask(authority, "1"), "one");
  Write(Line("two", "viewer", "2"));
  EXPECT_EQ(Ask(authority, "2"), "UNAUTHENTICATED TOKEN_INVALID") << "less than a second has passed";
  authority.Reload();
  EXPECT_EQ(Ask(authority, "2"), "two");
  EXPECT_TRUE(authority.FileIsOk());
  Write("half a li");
  authority.Reload();
  EXPECT_EQ(Ask(authority, "2"), "two");
  EXPECT_FALSE(authority.FileIsOk());
  authority.Reload();
  EXPECT_FALSE(authority.FileIsOk()) << "also when the error was logged already";
  Write(Line("two", "viewer", "2"));
  authority.Reload();
  EXPECT_TRUE(authority.FileIsOk());
}

TEST_F(AuthorityTest, FileIsOkWithoutATokenFile) {
  auto opened = Authority::Open(base::RealFileSystem(), clock_, {});
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_TRUE((*opened)->FileIsOk());
}

// Counts reads of files.
class CountReads {
 public:
  explicit CountReads(std::atomic<int>* reads) : reads_(*reads) {}
  template <typename Work>
  auto Around(const char* operation, const std::string&, Work work) -> decltype(work()) {
    if (std::string_view(operation) == "read") ++reads_;
    return work();
  }
  template <typename Write>
  absl::Status Append(const std::string&, std::string_view bytes, Write write) {
    return write(bytes);
  }

 private:
  std::atomic<int>& reads_;
};

TEST_F(AuthorityTest, WatchReadsTheFileWithoutACall) {
  Write(Line("one", "viewer", "1"));
  std::atomic<int> reads{0};
  base::HookedFiles<CountReads> files(base::RealFileSystem(), &reads);
  auto opened = Authority::Open(files, clock_, {.token_file = path_, .reload = absl::Milliseconds(1)});
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(reads, 1);
  (*opened)->Watch();
  for (int want = 2; want < 5; ++want) {
    clock_.Advance(absl::Seconds(1));
    EXPECT_TRUE(testing_support::Soon([&] { return reads >= want; })) << want;
  }
}

TEST_F(AuthorityTest, DoesNotStartWithAMissingEmptyOrInvalidFile) {
  EXPECT_THAT(std::string(Open().status().message()), HasSubstr("--token_file"));
  Write("# nobody yet\n");
  EXPECT_EQ(Open().status().code(), absl::StatusCode::kInvalidArgument);
  Write("{}");
  EXPECT_THAT(std::string(Open().status().message()), HasSubstr("line 1"));
}

// S11: path and address of a caller are in the log as one escaped line.
TEST_F(AuthorityTest, S11RefusalsAreOneJsonLineEach) {
  Write(Line("one", "viewer", "1"));
  auto opened = Open();
  ASSERT_TRUE(opened.ok());
  Caller caller = With("canary-token");
  caller.peer = "ipv4:1.2.3.4:5\n{\"level\":\"info\"}";
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE((*opened)->Admit(std::string("/a\r\nb\"c\x1b[31m\0d\xff", 15), caller).ok());
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  EXPECT_EQ(log.find('\x1b'), std::string::npos);
  EXPECT_THAT(log, HasSubstr(R"("method":"/a\r\nb\"c\u001b[31m\u0000d)"));
  EXPECT_THAT(log, Not(HasSubstr("canary-token")));
}

// A listener of another protocol names its client by metadata, which counts only with the server's secret.
TEST_F(AuthorityTest, OnlyTheServersSecretMakesACallerAnother) {
  Write(R"({"name": "one", "role": "viewer", "san": "uri:spiffe://tests/one"})"
        "\n");
  auto opened = Open();
  ASSERT_TRUE(opened.ok());
  Caller forwarded;
  forwarded.peer = "inproc";
  forwarded.forward_peer = "ipv4:10.0.0.1:5";
  forwarded.forward_names = {"uri:spiffe://tests/one"};
  for (const std::string& secret : {std::string(), std::string("guess"), (*opened)->forward_secret() + "x"}) {
    Caller caller = forwarded;
    caller.forward_secret = secret;
    EXPECT_FALSE((*opened)->Resolve(caller));
    EXPECT_EQ(caller.peer, "inproc");
    EXPECT_EQ(Reason((*opened)->Admit("nibble.v1.ModelService/ListModels", caller).status()), "TOKEN_MISSING");
  }
  forwarded.forward_secret = (*opened)->forward_secret();
  EXPECT_TRUE((*opened)->Resolve(forwarded));
  EXPECT_EQ(forwarded.peer, "ipv4:10.0.0.1:5");
  const auto principal = (*opened)->Admit("nibble.v1.ModelService/ListModels", forwarded);
  ASSERT_TRUE(principal.ok()) << principal.status();
  EXPECT_EQ(principal->name, "one");
}

TEST_F(AuthorityTest, SecretsOfServersDiffer) {
  Write(Line("one", "viewer", "1"));
  EXPECT_NE((*Open())->forward_secret(), (*Open())->forward_secret());
}

TEST_F(AuthorityTest, AFloodOfRefusalsDoesNotFloodTheLog) {
  Write(Line("one", "viewer", "1"));
  auto opened = Open();
  ASSERT_TRUE(opened.ok());
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 1000; ++i) Ask(**opened, "bad");
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 20) << "the limit of one second";
  EXPECT_EQ(refusals_["TOKEN_INVALID"], 1000);
}

}  // namespace
}  // namespace nibble::auth
