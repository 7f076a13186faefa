#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "server/base/error.h"
#include "server/base/free_space.h"
#include "server/base/ids.h"
#include "server/base/sha256.h"
#include "server/store/checkpoints.h"
#include "server/store/disk_space.h"
#include "server/store/state_directory.h"
#include "tests/server/store/faulty_files.h"
#include "tests/server/store/real_files.h"
#include "tests/support/temp_directory.h"

namespace nibble::store {
namespace {

using nibble::testing::TempDirectory;
using ::testing::HasSubstr;

class StoresTest : public ::testing::Test {
 protected:
  void SetUp() override { Reopen(); }
  void Reopen() {
    state_.reset();
    UploadLimits limits;
    limits.max_file_bytes = 100;
    limits.max_total_bytes = 100;
    limits.min_free_bytes = 0;
    auto opened = StateDirectory::Open(Files(), temp_ / "state", limits);
    ASSERT_TRUE(opened.ok()) << opened.status();
    state_ = *std::move(opened);
  }
  void AddModel(const std::string& name) {
    auto pending = state_->models->Begin(name);
    ASSERT_TRUE(pending.ok()) << pending.status();
    WriteFile((*pending)->directory() + "/nibble.json", R"({"format":"f32"})");
    const auto model = (*pending)->Commit();
    ASSERT_TRUE(model.ok()) << model.status();
  }
  void AddDataset(const std::string& name) {
    const std::string text = "{\"text\":\"a\"}\n";
    auto pending = state_->datasets->Begin(name);
    ASSERT_TRUE(pending.ok()) << pending.status();
    ASSERT_TRUE((*pending)->Append(text).ok());
    const auto dataset =
        (*pending)->Finish(base::Sha256Hex(text), [](const std::string&) { return base::Json::object(); });
    ASSERT_TRUE(dataset.ok()) << dataset.status();
  }
  // Writes a trainer's output, which is not yet in the store, and returns its path.
  std::string Output(const std::string& name, std::string* digest) {
    auto pending = PendingDirectory::Create(Files(), temp_ / name);
    EXPECT_TRUE(pending.ok());
    WriteFile(pending->path() + "/model.safetensors", "weights of " + name);
    *digest = pending->Commit()->digest;
    return temp_ / name;
  }

  TempDirectory temp_;
  std::unique_ptr<StateDirectory> state_;
};

TEST_F(StoresTest, RejectsASecondServerAndNamesTheFirst) {  // R23
  const auto second = StateDirectory::Open(Files(), temp_ / "state");
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(base::Reason(second.status()), "STATE_DIR_IN_USE");
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(std::to_string(::getpid())));
}

TEST_F(StoresTest, LockIsFreeAfterItsOwnerIsKilled) {  // R23
  const std::string path = temp_ / "lock";
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto lock = StateLock::Acquire(path);
    (void)!::write(ready[1], lock.ok() ? "y" : "n", 1);
    ::pause();
    ::_exit(0);
  }
  char answer = 0;
  ASSERT_EQ(::read(ready[0], &answer, 1), 1);
  ASSERT_EQ(answer, 'y');
  EXPECT_EQ(base::ReasonMetadata(StateLock::Acquire(path).status())["pid"], std::to_string(child));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(StateLock::Acquire(path).ok());
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_F(StoresTest, ModelsSurviveAReopenAndLeftoversDoNot) {
  AddModel("m");
  std::filesystem::create_directories(state_->paths.model("half.tmp.w-0123456789abcdef"));
  std::filesystem::create_directories(state_->paths.model("lost+found"));  // no model can have that name
  std::filesystem::create_directories(state_->paths.uploads() + "/upload-1");
  Reopen();
  ASSERT_EQ(state_->models->List().size(), 1u);
  const auto model = state_->models->Get("m");
  ASSERT_TRUE(model.ok());
  EXPECT_EQ(model->info["format"], "f32");
  EXPECT_TRUE(state_->models->Verify("m").ok());
  EXPECT_FALSE(Files().Exists(state_->paths.model("half.tmp.w-0123456789abcdef")));
  EXPECT_TRUE(Files().List(state_->paths.uploads())->empty());
  EXPECT_EQ(base::Reason(state_->models->Get("lost+found").status()), "MODEL");
}

// Requests report the damage, the name stays taken, and the model is readable again when its file is restored.
TEST_F(StoresTest, ModelDamagedWhileNoServerRanKeepsItsName) {  // R12
  for (const std::string file : {"nibble.json", "manifest.json"}) {
    for (const std::string bytes : {"", "{", "[{\"format\":\"f32]", "(none)"}) {
      SCOPED_TRACE(file + ": " + bytes);
      AddModel("m");
      const std::string path = base::JoinPath(state_->paths.model("m"), file);
      const std::string whole = *Files().Read(path, 1 << 20);
      if (bytes == "(none)") {  // no file at all
        std::filesystem::remove(path);
      } else {
        WriteFile(path, bytes);
      }
      Reopen();
      for (const absl::Status& damaged : {state_->models->Get("m").status(), state_->models->Verify("m").status(),
                                          state_->models->Delete("m", "an etag")}) {
        EXPECT_EQ(damaged.code(), absl::StatusCode::kDataLoss) << damaged;
        EXPECT_EQ(base::Reason(damaged), "ARTIFACT_CORRUPT");
        EXPECT_EQ(base::ReasonMetadata(damaged)["model"], "m");
        EXPECT_EQ(damaged.message().find(state_->paths.root()), std::string::npos) << damaged;
      }
      for (const absl::Status& taken : {state_->models->Begin("m").status(), state_->models->Reserve("m", "job-1"),
                                        state_->models->CheckFree("m")}) {
        EXPECT_EQ(taken.code(), absl::StatusCode::kAlreadyExists) << taken;
        EXPECT_EQ(base::Reason(taken), "NAME_TAKEN");
      }
      ASSERT_EQ(state_->models->List().size(), 1u);
      EXPECT_TRUE(state_->models->List()[0].damaged);
      EXPECT_EQ(state_->models->List()[0].name, "m");

      WriteFile(path, whole);
      EXPECT_TRUE(state_->models->Verify("m").ok());
      EXPECT_FALSE(state_->models->List()[0].damaged);
      std::filesystem::remove(path);
      Reopen();
      {
        const auto pin = state_->models->PinModel("m", "job job-1");
        ASSERT_TRUE(pin.ok()) << pin.status();
        EXPECT_EQ(base::Reason(state_->models->Delete("m")), "MODEL_IN_USE");
      }
      ASSERT_TRUE(state_->models->Delete("m").ok());
      EXPECT_TRUE(Files().List(state_->paths.models())->empty());
      EXPECT_EQ(base::Reason(state_->models->Get("m").status()), "MODEL");
    }
  }
}

TEST_F(StoresTest, DatasetDamagedWhileNoServerRanKeepsItsName) {
  for (const std::string file : {"data.jsonl", "meta.json", "manifest.json"}) {
    SCOPED_TRACE(file);
    AddDataset("d");
    const std::string path = state_->paths.dataset("d") + "/" + file;
    const std::string whole = *Files().Read(path, 1 << 20);
    WriteFile(path, whole.substr(0, whole.size() / 2));
    Reopen();
    for (const absl::Status& damaged :
         {state_->datasets->Get("d").status(), state_->datasets->Delete("d", "an etag")}) {
      EXPECT_EQ(damaged.code(), absl::StatusCode::kDataLoss) << damaged;
      EXPECT_EQ(base::Reason(damaged), "ARTIFACT_CORRUPT");
      EXPECT_EQ(base::ReasonMetadata(damaged)["dataset"], "d");
    }
    EXPECT_EQ(base::Reason(state_->datasets->Begin("d").status()), "NAME_TAKEN");
    ASSERT_EQ(state_->datasets->List().size(), 1u);
    EXPECT_TRUE(state_->datasets->List()[0].damaged);
    WriteFile(path, whole);
    EXPECT_TRUE(state_->datasets->Get("d").ok());
    std::filesystem::remove(path);
    Reopen();
    ASSERT_TRUE(state_->datasets->Delete("d").ok());
    EXPECT_EQ(base::Reason(state_->datasets->Get("d").status()), "DATASET");
    EXPECT_TRUE(Files().List(state_->paths.datasets())->empty());
  }
}

TEST_F(StoresTest, TokenFilesAreDeletedWithTheirDataset) {
  for (const std::string name : {"d", "e"}) {
    AddDataset(name);
    ASSERT_TRUE(Files().CreateDirectories(state_->paths.tokens(name)).ok());
    WriteFile(state_->paths.tokens(name) + "/some.tokens", "tokens");
  }
  ASSERT_TRUE(state_->datasets->Delete("d").ok());
  EXPECT_FALSE(Files().Exists(state_->paths.tokens("d")));
  EXPECT_TRUE(Files().Exists(state_->paths.tokens("e") + "/some.tokens"));
}

TEST_F(StoresTest, DeletesEntriesWhoseFilesWereRemovedByHand) {
  AddModel("m");
  AddDataset("d");
  std::filesystem::remove_all(state_->paths.model("m"));
  std::filesystem::remove_all(state_->paths.dataset("d"));
  EXPECT_TRUE(state_->models->Delete("m").ok());
  EXPECT_TRUE(state_->datasets->Delete("d").ok());
  EXPECT_EQ(base::Reason(state_->models->Get("m").status()), "MODEL");
  EXPECT_EQ(base::Reason(state_->datasets->Get("d").status()), "DATASET");
}

// A name may resemble the server's temporary names, but must not have exactly their form.
TEST_F(StoresTest, RejectsOnlyExactTemporaryNamesAndKeepsOthersOnReopen) {
  const char* names[] = {"llama.tmp", "m.tmp.w-0123456789abcdez", "m.tmp.w-0123456789abcdef0", "v1.tmp.2"};
  for (const char* name : names) {
    AddModel(name);
    AddDataset(name);
  }
  Reopen();
  EXPECT_EQ(state_->models->List().size(), 4u);
  EXPECT_EQ(state_->datasets->List().size(), 4u);
  for (const char* name : names) {
    EXPECT_TRUE(state_->models->Verify(name).ok()) << name;
    EXPECT_TRUE(state_->datasets->Get(name).ok()) << name;
  }
  const std::string temporary = base::TemporaryName("m");
  for (const absl::Status& refused :
       {state_->models->Begin(temporary).status(), state_->datasets->Begin(temporary).status()}) {
    EXPECT_EQ(base::Reason(refused), "FIELD_VIOLATION");
    EXPECT_NE(refused.message().find("unfinished work"), std::string::npos) << refused;
  }
}

TEST_F(StoresTest, ModelsImportsAndReservationsHoldTheirNames) {
  AddModel("m");
  EXPECT_EQ(base::Reason(state_->models->Begin("m").status()), "NAME_TAKEN");
  const auto pending = state_->models->Begin("n");
  ASSERT_TRUE(pending.ok());
  EXPECT_EQ(base::Reason(state_->models->Begin("n").status()), "NAME_TAKEN");
  ASSERT_TRUE(state_->models->Reserve("out", "job-1").ok());
  EXPECT_TRUE(state_->models->Reserve("out", "job-1").ok());
  EXPECT_EQ(base::Reason(state_->models->Reserve("out", "job-2")), "NAME_TAKEN");
  EXPECT_EQ(base::Reason(state_->models->Begin("out").status()), "NAME_TAKEN");
  state_->models->Unreserve("out", "job-2");  // Not the owner: nothing happens.
  EXPECT_EQ(base::Reason(state_->models->Begin("out").status()), "NAME_TAKEN");
  EXPECT_TRUE(state_->models->CheckFree("n").ok()) << "CheckFree ignores operations, which run one after another";
  EXPECT_TRUE(state_->models->CheckFree("out").ok()) << "an owner without a JobTenant is not a job";
  state_->models->Unreserve("out", "job-1");
  ASSERT_TRUE(state_->models->Reserve("out", "job-1", "red").ok());
  EXPECT_EQ(base::Reason(state_->models->CheckFree("out")), "NAME_TAKEN");
  state_->models->Unreserve("out", "job-1");
  EXPECT_TRUE(state_->models->CheckFree("out").ok());
  EXPECT_TRUE(state_->models->Begin("out").ok());
  EXPECT_EQ(state_->models->Begin("../m").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(StoresTest, PublishIsIdempotent) {
  std::string digest, other_digest;
  const std::string output = Output("output", &digest), other = Output("other", &other_digest);
  ASSERT_TRUE(state_->models->Reserve("out", "job-1").ok());
  EXPECT_EQ(base::Reason(state_->models->Publish("out", "job-2", output, digest)), "NAME_TAKEN");
  EXPECT_EQ(state_->models->Publish("out", "job-1", output, other_digest).code(), absl::StatusCode::kDataLoss);
  ASSERT_TRUE(state_->models->Publish("out", "job-1", output, digest).ok());
  EXPECT_TRUE(state_->models->Publish("out", "job-1", output, digest).ok());
  Reopen();
  EXPECT_TRUE(state_->models->Publish("out", "job-1", output, digest).ok());
  EXPECT_EQ(base::Reason(state_->models->Publish("out", "job-1", other, other_digest)), "NAME_TAKEN");
}

// After a crash, an owner may repeat Publish for a model that was deleted meanwhile. The call fails, whether or not
// another model has the name by then.
TEST_F(StoresTest, PublishOfADeletedModelFailsPermanently) {
  std::string digest;
  const std::string output = Output("output", &digest);
  ASSERT_TRUE(state_->models->Reserve("out", "job-1").ok());
  ASSERT_TRUE(state_->models->Publish("out", "job-1", output, digest).ok());
  EXPECT_EQ(base::Reason(state_->models->Reserve("out", "job-2")), "NAME_TAKEN") << "the model has the name";
  ASSERT_TRUE(state_->models->Delete("out").ok());
  EXPECT_EQ(state_->models->Publish("out", "job-1", output, digest).code(), absl::StatusCode::kDataLoss);
  state_->models->Unreserve("out", "job-1");
  {
    const auto pending = state_->models->Begin("out");
    ASSERT_TRUE(pending.ok()) << pending.status();
    EXPECT_EQ(base::Reason(state_->models->Publish("out", "job-1", output, digest)), "NAME_TAKEN");
  }
  AddModel("out");
  EXPECT_EQ(base::Reason(state_->models->Publish("out", "job-1", output, digest)), "NAME_TAKEN");
}

// An earlier call failed after its rename, so the source no longer exists. Publish succeeds only if the target holds
// the expected output, not another one or nothing.
TEST_F(StoresTest, PublishResumesAfterAFailedCall) {
  std::string digest, other_digest;
  const std::string output = Output("output", &digest), other = Output("other", &other_digest);
  ASSERT_TRUE(state_->models->Reserve("out", "job-1").ok());
  ASSERT_TRUE(state_->models->Reserve("wrong", "job-1").ok());
  ASSERT_TRUE(state_->models->Reserve("gone", "job-1").ok());
  std::filesystem::rename(output, state_->paths.model("out"));
  std::filesystem::rename(other, state_->paths.model("wrong"));
  EXPECT_EQ(state_->models->Publish("wrong", "job-1", output, digest).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(state_->models->Publish("gone", "job-1", output, digest).code(), absl::StatusCode::kDataLoss);
  ASSERT_TRUE(state_->models->Publish("out", "job-1", output, digest).ok());
  EXPECT_EQ(state_->models->Get("out")->directory, state_->paths.model("out"));
  EXPECT_TRUE(state_->models->Verify("out").ok());
}

TEST_F(StoresTest, PublishOfAnUnreadableOutputFailsPermanently) {
  auto pending = PendingDirectory::Create(Files(), temp_ / "output");
  ASSERT_TRUE(pending.ok());
  WriteFile(pending->path() + "/nibble.json", "{");
  const std::string digest = pending->Commit()->digest;
  ASSERT_TRUE(state_->models->Reserve("out", "job-1").ok());
  EXPECT_EQ(state_->models->Publish("out", "job-1", temp_ / "output", digest).code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(Files().Exists(state_->paths.model("out")));
}

// Callers of other tenants see "a job" instead of the job's id.
TEST_F(StoresTest, ErrorsHideAJobFromOtherTenants) {  // S2
  AddModel("m");
  AddDataset("d");
  const auto model_user = [&](const std::string& tenant) {
    const absl::Status refused = state_->models->Delete("m", std::nullopt, tenant);
    EXPECT_EQ(base::Reason(refused), "MODEL_IN_USE");
    const std::string user = base::ReasonMetadata(refused)["user"];
    EXPECT_THAT(std::string(refused.message()), HasSubstr("(" + user + ")"));
    return user;
  };
  const auto red = state_->models->PinModel("m", "job job-1", "red");
  EXPECT_EQ(model_user("red"), "job job-1");
  EXPECT_EQ(model_user(""), "job job-1");
  EXPECT_EQ(model_user("blue"), "a job");
  const auto without_tenant = state_->models->PinModel("m", "job job-0", "");
  EXPECT_EQ(model_user("blue"), "a job") << "blue may not see a job without a tenant";
  EXPECT_EQ(model_user("red"), "job job-1") << "of the two users, red may see only its own job";
  const auto loaded = state_->models->PinModel("m", "loaded");
  EXPECT_EQ(model_user("blue"), "loaded") << "a user that is not a job is never hidden";
  const auto data = state_->datasets->PinDataset("d", "job job-1", "red");
  EXPECT_EQ(base::ReasonMetadata(state_->datasets->Delete("d", std::nullopt, "blue"))["user"], "a job");
  EXPECT_EQ(base::ReasonMetadata(state_->datasets->Delete("d", std::nullopt, "red"))["user"], "job job-1");

  ASSERT_TRUE(state_->models->Reserve("out", "job-1", "red").ok());
  const auto taken_by = [&](const absl::Status& refused) {
    EXPECT_EQ(base::Reason(refused), "NAME_TAKEN");
    return std::string(refused.message());
  };
  EXPECT_THAT(taken_by(state_->models->Reserve("out", "job-2", "red")), HasSubstr("by job-1"));
  EXPECT_THAT(taken_by(state_->models->Reserve("out", "job-2", "")), HasSubstr("by job-1"));
  EXPECT_THAT(taken_by(state_->models->Reserve("out", "job-2", "blue")), HasSubstr("by a job"));
  EXPECT_THAT(taken_by(state_->models->Begin("out", "red").status()), HasSubstr("by job-1"));
  EXPECT_THAT(taken_by(state_->models->Begin("out", "").status()), HasSubstr("by job-1"));
  EXPECT_THAT(taken_by(state_->models->Begin("out", "blue").status()), HasSubstr("by a job"));
  EXPECT_THAT(taken_by(state_->models->Begin("out").status()), HasSubstr("by a job")) << "the viewer is unknown";
  ASSERT_TRUE(state_->models->Reserve("free", "job-0", "").ok());
  EXPECT_THAT(taken_by(state_->models->Begin("free").status()), HasSubstr("by job-0")) << "a job without a tenant";
  EXPECT_THAT(taken_by(state_->models->Begin("free", "blue").status()), HasSubstr("by a job"));
  // The tenant of an import's caller does not make the import a job.
  const auto pending = state_->models->Begin("imported", "red");
  ASSERT_TRUE(pending.ok()) << pending.status();
  EXPECT_THAT(taken_by(state_->models->Reserve("imported", "job-2", "blue")), HasSubstr("by import-"));
}

TEST_F(StoresTest, DeleteWithAnEtagRemovesOnlyThatVersion) {
  const auto add = [&](int version) {
    auto pending = state_->models->Begin("m");
    ASSERT_TRUE(pending.ok()) << pending.status();
    WriteFile((*pending)->directory() + "/nibble.json", "{\"version\":" + std::to_string(version) + "}");
    ASSERT_TRUE((*pending)->Commit().ok());
  };
  add(0);
  for (int version = 1; version <= 50; ++version) {
    const std::string etag = Etag(*state_->models->Get("m"));
    // Whenever this thread runs, it may delete the previous version, but never the new one.
    std::thread late([&] { state_->models->Delete("m", etag).IgnoreError(); });
    state_->models->Delete("m").IgnoreError();
    add(version);
    late.join();
    const auto model = state_->models->Get("m");
    ASSERT_TRUE(model.ok()) << version << ": " << model.status();
    EXPECT_EQ(model->info["version"], version);
    const absl::Status refused = state_->models->Delete("m", etag);
    EXPECT_EQ(base::Reason(refused), "ETAG_MISMATCH");
    EXPECT_EQ(base::ReasonMetadata(refused)["etag"], Etag(*model));
  }
  EXPECT_TRUE(state_->models->Delete("m", Etag(*state_->models->Get("m"))).ok());
  AddDataset("d");
  const std::string etag = Etag(*state_->datasets->Get("d"));
  const absl::Status refused = state_->datasets->Delete("d", "old");
  EXPECT_EQ(base::Reason(refused), "ETAG_MISMATCH");
  EXPECT_EQ(base::ReasonMetadata(refused)["etag"], etag);
  EXPECT_TRUE(state_->datasets->Delete("d", etag).ok());
}

TEST_F(StoresTest, ModelInUseIsNotDeleted) {
  AddModel("m");
  auto loaded = state_->models->PinModel("m", "loaded");
  auto job = state_->models->PinModel("m", "job job-1");
  ASSERT_TRUE(loaded.ok() && job.ok());
  const absl::Status refused = state_->models->Delete("m");
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(base::Reason(refused), "MODEL_IN_USE");
  loaded->reset();
  EXPECT_EQ(base::ReasonMetadata(state_->models->Delete("m"))["user"], "job job-1");
  job->reset();
  EXPECT_TRUE(state_->models->Delete("m").ok());
  EXPECT_EQ(state_->models->Delete("m").code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(Files().List(state_->paths.models())->empty());
}

TEST_F(StoresTest, DatasetExistsOnlyAfterHashAndValidatorPass) {
  const auto good = [](const std::string& path) -> absl::StatusOr<base::Json> {
    EXPECT_TRUE(Files().Exists(path));
    base::Json meta = base::Json::object();
    meta["format"] = "text";
    return meta;
  };
  const auto bad = [](const std::string&) -> absl::StatusOr<base::Json> {
    return base::WithReason(absl::InvalidArgumentError("line 2: no text"), "DATASET_FORMAT");
  };
  const std::string text = "{\"text\":\"a\"}\n";
  const auto upload = [&](std::string_view sha256, const DatasetValidator& validate) {
    auto pending = state_->datasets->Begin("d");
    EXPECT_TRUE(pending.ok()) << pending.status();
    EXPECT_TRUE((*pending)->Append(text.substr(0, 5)).ok());
    EXPECT_TRUE((*pending)->Append(text.substr(5)).ok());
    return (*pending)->Finish(sha256, validate).status();
  };
  EXPECT_EQ(base::Reason(upload(std::string(64, '0'), good)), "CHECKSUM_MISMATCH");
  EXPECT_EQ(base::Reason(upload(base::Sha256Hex(text), bad)), "DATASET_FORMAT");
  EXPECT_EQ(state_->datasets->Get("d").status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(Files().List(state_->paths.datasets())->empty());
  EXPECT_TRUE(Files().List(state_->paths.uploads())->empty());

  ASSERT_TRUE(upload(base::Sha256Hex(text), good).ok());
  Reopen();
  const auto dataset = state_->datasets->Get("d");
  ASSERT_TRUE(dataset.ok());
  EXPECT_EQ(dataset->meta["format"], "text");
  EXPECT_EQ(dataset->sha256, base::Sha256Hex(text));
  EXPECT_EQ(*Files().Read(dataset->data_path, 1000), text);
  EXPECT_EQ(base::Reason(state_->datasets->Begin("d").status()), "NAME_TAKEN");
  auto pin = state_->datasets->PinDataset("d", "job job-1");
  EXPECT_EQ(base::Reason(state_->datasets->Delete("d")), "DATASET_IN_USE");
  pin->reset();
  EXPECT_TRUE(state_->datasets->Delete("d").ok());
}

TEST_F(StoresTest, RejectsUploadAboveItsLimitAndFreesTheName) {
  {
    auto pending = state_->datasets->Begin("d");
    ASSERT_TRUE(pending.ok());
    EXPECT_EQ(base::Reason(state_->datasets->Begin("d").status()), "NAME_TAKEN");
    EXPECT_TRUE((*pending)->Append(std::string(100, 'x')).ok());
    const absl::Status refused = (*pending)->Append("x");
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(base::Reason(refused), "UPLOAD_TOO_LARGE");
  }
  EXPECT_TRUE(state_->datasets->Begin("d").ok());
}

TEST_F(StoresTest, UploadAcceptsEachPlainFileNameOnce) {
  UploadLimits limits;
  limits.max_files = 2;
  auto upload = Upload::Begin(Files(), state_->paths, limits);
  ASSERT_TRUE(upload.ok());
  EXPECT_EQ((*upload)->BeginFile("../config.json").code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE((*upload)->BeginFile("config.json").ok());
  EXPECT_EQ((*upload)->BeginFile("other").code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE((*upload)->Append("{}").ok());
  ASSERT_TRUE((*upload)->FinishFile(base::Sha256Hex("{}")).ok());
  EXPECT_EQ((*upload)->BeginFile("config.json").code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE((*upload)->BeginFile("model.safetensors").ok());
  ASSERT_TRUE((*upload)->FinishFile(base::Sha256Hex("")).ok());
  EXPECT_EQ((*upload)->BeginFile("third").code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(StoresTest, DiskBelowTheWatermarkRefusesUploads) {
  UploadLimits limits;
  limits.min_free_bytes = 1ull << 60;
  auto upload = Upload::Begin(Files(), state_->paths, limits);
  ASSERT_TRUE(upload.ok());
  ASSERT_TRUE((*upload)->BeginFile("a").ok());
  EXPECT_EQ(base::Reason((*upload)->Append("x")), "DISK_FULL");
}

// Other writers may fill the disk during an upload.
TEST_F(StoresTest, UploadFailsWhenTheDiskReachesTheWatermark) {  // R9
  DiskWithRoom disk(100);
  UploadLimits limits;
  limits.min_free_bytes = 50;
  auto upload = Upload::Begin(disk, state_->paths, limits);
  ASSERT_TRUE(upload.ok());
  ASSERT_TRUE((*upload)->BeginFile("a").ok());
  ASSERT_TRUE((*upload)->Append("x").ok());
  disk.free = 50;
  EXPECT_EQ(base::Reason((*upload)->Append("x")), "DISK_FULL");
}

TEST_F(StoresTest, DiskBelowTheWatermarkRefusesNewModels) {  // R9
  auto models = ModelStore::Open(Files(), state_->paths, std::uint64_t{1} << 60);
  ASSERT_TRUE(models.ok());
  const absl::Status refused = (*models)->Begin("m").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(base::Reason(refused), "DISK_FULL");
  EXPECT_TRUE((*ModelStore::Open(Files(), state_->paths, 0))->Begin("m").ok());
}

TEST(DiskSpaceTest, WarnsOnlyBelowTheWatermark) {  // R9
  const auto logged = [](std::uint64_t watermark) {
    ::testing::internal::CaptureStderr();
    WarnBelowWatermark(Files(), "/", watermark, "low");
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(logged(0), "");
  const std::string line = logged(std::uint64_t{1} << 60);
  EXPECT_THAT(line, HasSubstr(R"("level":"warning")"));
  EXPECT_THAT(line, HasSubstr("low"));
  EXPECT_THAT(line, HasSubstr(R"("directory":"/","free_bytes":)"));
  EXPECT_THAT(line, HasSubstr(R"("wanted_bytes":1152921504606846976})"));
}

TEST(DiskSpaceTest, WatermarkIsFivePercentAndAtLeastOneGibibyte) {  // R9
  constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
  EXPECT_EQ(DefaultWatermark(64 << 20), kGiB);
  EXPECT_EQ(DefaultWatermark(20 * kGiB), kGiB);
  EXPECT_EQ(DefaultWatermark(100 * kGiB), 5 * kGiB);
}

TEST(DiskSpaceTest, TotalBytesAndCheckSpaceReadTheDisk) {  // R9
  EXPECT_GT(*TotalBytes("/"), *Files().FreeBytes("/"));
  EXPECT_FALSE(TotalBytes("/nothing/there").ok());
  EXPECT_TRUE(base::CheckSpace(Files(), "/", 1).ok());
  EXPECT_FALSE(base::CheckSpace(Files(), "/", std::uint64_t{1} << 60).ok());
}

class CheckpointsTest : public ::testing::Test {
 protected:
  void Save(int attempt, int step, const std::string& bytes) {
    auto pending = BeginCheckpoint(Files(), temp_ / std::to_string(attempt), step);
    ASSERT_TRUE(pending.ok()) << pending.status();
    WriteFile(pending->path() + "/adapter.bin", bytes);
    ASSERT_TRUE(pending->Commit().ok());
  }
  std::string Newest() {
    const auto found = FindNewestCheckpoint(Files(), temp_.path());
    EXPECT_TRUE(found.ok());
    return found->has_value() ? std::to_string((*found)->attempt) + "/" + std::to_string((*found)->step) : "none";
  }
  TempDirectory temp_;
};

TEST_F(CheckpointsTest, FindsTheNewestValidCheckpointAcrossAttempts) {
  EXPECT_EQ(Newest(), "none");
  Save(1, 10, "ten");
  Save(1, 20, "twenty");
  Save(2, 30, "thirty");
  EXPECT_EQ(Newest(), "2/30");
  WriteFile(temp_ / "2/checkpoints/step-00000030/adapter.bin", "thirtz");
  EXPECT_EQ(Newest(), "1/20");
  std::filesystem::remove(temp_ / "1/checkpoints/step-00000020/manifest.json");
  EXPECT_EQ(Newest(), "1/10");
  WriteFile(temp_ / "1/checkpoints/step-00000010/adapter.bin", "");
  EXPECT_EQ(Newest(), "none");
}

TEST_F(CheckpointsTest, PruningKeepsTheLastTwoValidCheckpoints) {
  for (int step = 1; step <= 4; ++step) Save(1, step, "x");
  WriteFile(temp_ / "1/checkpoints/step-00000004/adapter.bin", "short?");  // Damaged, so it does not count.
  ASSERT_TRUE(PruneCheckpoints(Files(), temp_ / "1", 2).ok());
  const auto left = ListCheckpoints(Files(), temp_ / "1", 1);
  ASSERT_EQ(left->size(), 2u);
  EXPECT_EQ((*left)[0].step, 2);
  EXPECT_EQ((*left)[1].step, 3);
  Save(2, 5, "x");
  ASSERT_TRUE(PruneAllCheckpoints(Files(), temp_.path(), 2).ok());
  const auto all = ListAllCheckpoints(Files(), temp_.path());
  ASSERT_EQ(all->size(), 2u);
  EXPECT_EQ((*all)[1].attempt, 2);
}

TEST_F(CheckpointsTest, UnfinishedCheckpointIsIgnoredAndCollected) {  // R5
  Save(1, 1, "x");
  std::filesystem::create_directories(temp_ / "1/checkpoints/step-00000002.tmp.w-0123456789abcdef");
  EXPECT_EQ(Newest(), "1/1");
  ASSERT_TRUE(CollectAttempt(Files(), temp_ / "1").ok());
  EXPECT_EQ(Files().List(temp_ / "1/checkpoints")->size(), 1u);
}

}  // namespace
}  // namespace nibble::store
