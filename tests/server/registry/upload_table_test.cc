// Uploads between their first message and their use (docs/faults.md, C10).
#include "server/registry/upload_table.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <utility>

#include "server/base/error.h"

namespace nibble::registry {
namespace {

// Removes its name from `alive` when it is destroyed.
class Content : public UploadContent {
 public:
  Content(std::set<std::string>& alive, std::string name) : alive_(alive), name_(std::move(name)) {
    alive_.insert(name_);
  }
  ~Content() override { alive_.erase(name_); }
  std::int32_t num_files() const override { return 3; }

 private:
  std::set<std::string>& alive_;
  const std::string name_;
};

class UploadTableTest : public ::testing::Test {
 protected:
  using Stream = std::unique_ptr<UploadTable::Stream>;

  static UploadTable::Start StartOf(const std::string& id, UploadKind kind = UploadKind::kModel) {
    return {.owner = {"", "ann"}, .id = id, .kind = kind, .name = "name"};
  }
  Stream Begin(const UploadTable::Start& start, std::int64_t bytes) {
    auto stream = table_.Begin(start, EndOf(start.id));
    EXPECT_TRUE(stream.ok()) << stream.status();
    base::MutexLock lock((*stream)->using_content());
    (*stream)->content() = std::make_unique<Content>(alive_, start.id);
    EXPECT_TRUE((*stream)->Charge(bytes).ok());
    return *std::move(stream);
  }
  UploadTable::End EndOf(const std::string& id) {
    return [this, id](const absl::Status& why) { ended_[id] = why; };
  }
  UploadInfo Get(const std::string& id) {
    const auto info = table_.Get(ann_, id);
    EXPECT_TRUE(info.ok()) << info.status();
    return info.value_or(UploadInfo());
  }
  bool Has(const std::string& id) { return table_.Get(ann_, id).ok(); }

  const auth::Principal ann_{"ann", auth::Role::kTrain, ""};
  base::FakeClock clock_{absl::FromUnixSeconds(1'700'000'000)};
  std::set<std::string> alive_;
  std::map<std::string, absl::Status> ended_;
  UploadTable table_{clock_, {.max_bytes_per_principal = 100, .max_uploads = 3, .kept = absl::Minutes(10)}};
};

TEST_F(UploadTableTest, C10AnInterruptedUploadIsResumedWhereItStopped) {
  Stream stream = Begin(StartOf("a"), 40);
  EXPECT_EQ(Get("a").state, UploadState::kReceiving);
  stream->Keep();
  stream.reset();
  const UploadInfo info = Get("a");
  EXPECT_EQ(info.state, UploadState::kInterrupted);
  EXPECT_EQ(info.bytes, 40);
  EXPECT_EQ(info.num_files, 3);
  EXPECT_EQ(info.expires, clock_.Now() + absl::Minutes(10));
  // A resume at another offset, or with another kind, name or owner, is refused, and the upload stays.
  EXPECT_EQ(base::ReasonMetadata(table_.Resume(StartOf("a"), 39, {}).status())["field"], "header.resume_offset");
  EXPECT_EQ(base::Reason(table_.Resume(StartOf("a", UploadKind::kDataset), 40, {}).status()), "UPLOAD");
  EXPECT_EQ(base::Reason(table_.Resume(StartOf("b"), 40, {}).status()), "UPLOAD");
  UploadTable::Start other = StartOf("a");
  other.name = "other";
  EXPECT_EQ(base::ReasonMetadata(table_.Resume(other, 40, {}).status())["field"], "header.name");
  other = StartOf("a");
  other.owner.tenant = "red";
  EXPECT_EQ(base::Reason(table_.Resume(other, 40, {}).status()), "UPLOAD");
  EXPECT_EQ(Get("a").state, UploadState::kInterrupted);
  auto resumed = table_.Resume(StartOf("a"), 40, {});
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_TRUE(alive_.contains("a"));
  EXPECT_EQ(Get("a").state, UploadState::kReceiving);
  clock_.Advance(absl::Hours(5));
  table_.DropOld();
  EXPECT_TRUE(Has("a")) << "an upload does not expire while a stream sends it";
  base::MutexLock lock((*resumed)->using_content());
  EXPECT_TRUE((*resumed)->Charge(10).ok());
  EXPECT_EQ(Get("a").bytes, 50);
}

// A connection may hang for minutes before the server notices that it is lost: its client need not wait for that.
TEST_F(UploadTableTest, C10AResumingStreamTakesOverFromOneThatHangs) {
  Stream hangs = Begin(StartOf("a"), 40);
  const auto resumed = table_.Resume(StartOf("a"), 40, EndOf("second"));
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_TRUE(absl::IsAborted(ended_["a"])) << ended_["a"];
  EXPECT_TRUE(absl::IsAborted(hangs->Check()));
  EXPECT_TRUE(absl::IsAborted(hangs->Charge(1)));
  EXPECT_TRUE(absl::IsAborted(hangs->BeginFinish()));
  hangs->Keep();
  hangs.reset();
  EXPECT_EQ(Get("a").state, UploadState::kReceiving) << "the end of the old stream does not affect the upload";
  EXPECT_TRUE((*resumed)->Check().ok());
  EXPECT_FALSE(ended_.contains("second"));
}

TEST_F(UploadTableTest, C10UploadWithoutAnIdOfTheClientEndsWithItsStream) {
  auto stream = table_.Begin(StartOf(""), {});
  ASSERT_TRUE(stream.ok());
  const std::string id = (*stream)->id();
  EXPECT_FALSE(id.empty());
  EXPECT_TRUE(Has(id));
  (*stream)->Keep();
  stream->reset();
  EXPECT_FALSE(Has(id));
}

TEST_F(UploadTableTest, C10AFailedUploadIsDropped) {
  Begin(StartOf("a"), 40).reset();
  EXPECT_FALSE(Has("a"));
  EXPECT_TRUE(alive_.empty());
  EXPECT_NE(Begin(StartOf("b"), 100), nullptr) << "its bytes are free again";
}

TEST_F(UploadTableTest, C10UnusedUploadsExpire) {
  Stream interrupted = Begin(StartOf("a"), 10), finished = Begin(StartOf("b"), 20);
  interrupted->Keep();
  interrupted.reset();
  {
    base::MutexLock lock(finished->using_content());
    EXPECT_EQ(finished->Finish(), clock_.Now() + absl::Minutes(10));
  }
  finished.reset();
  EXPECT_TRUE(table_.CheckFinished({"", "ann"}, "b").ok());
  EXPECT_FALSE(table_.CheckFinished({"", "ann"}, "a").ok());
  clock_.Advance(absl::Minutes(9));
  table_.DropOld();
  EXPECT_EQ(alive_, (std::set<std::string>{"a", "b"}));
  clock_.Advance(absl::Minutes(1));
  table_.DropOld();
  EXPECT_TRUE(alive_.empty());
  EXPECT_TRUE(table_.List(ann_).empty());
}

TEST_F(UploadTableTest, C10BytesAndNumberOfUploadsOfOnePrincipalAreBounded) {
  Stream first = Begin(StartOf("a"), 60);
  const absl::Status full = first->Charge(41);
  EXPECT_EQ(base::Reason(full), "UPLOAD_QUOTA") << full;
  EXPECT_EQ(base::ReasonMetadata(full)["held_bytes"], "60");
  EXPECT_TRUE(first->Charge(40).ok());
  {
    base::MutexLock lock(first->using_content());
    first->Finish();
  }
  first.reset();
  // Finished uploads that are not used count, and so do announced bytes.
  UploadTable::Start announced = StartOf("b");
  announced.size_bytes = 1;
  EXPECT_EQ(base::Reason(table_.Begin(announced, {}).status()), "UPLOAD_QUOTA");
  UploadTable::Start other = StartOf("b");
  other.owner.name = "bob";
  EXPECT_NE(Begin(other, 100), nullptr) << "another principal has its own bound";
  // The bytes count until their import has ended.
  {
    const auto used = table_.TakeFinished({"", "ann"}, "a");
    ASSERT_TRUE(used.ok()) << used.status();
    EXPECT_FALSE(Has("a"));
    EXPECT_EQ(base::Reason(table_.Begin(announced, {}).status()), "UPLOAD_QUOTA");
    EXPECT_EQ(base::Reason(table_.TakeFinished({"", "ann"}, "a").status()), "UPLOAD") << "only once";
  }
  EXPECT_TRUE(alive_.empty());
  Stream small[3];
  for (int i = 0; i < 3; ++i) small[i] = Begin(StartOf(std::to_string(i)), 1);
  EXPECT_EQ(base::Reason(table_.Begin(StartOf("3"), {}).status()), "UPLOAD_QUOTA");
  small[0].reset();
  EXPECT_TRUE(table_.Begin(StartOf("3"), {}).ok());
}

TEST_F(UploadTableTest, C10CancelRemovesAnUploadAtOnceAndEndsItsStream) {
  Stream stream = Begin(StartOf("a"), 60), finished = Begin(StartOf("b"), 10), writing = Begin(StartOf("c"), 5);
  {
    base::MutexLock lock(finished->using_content());
    finished->Finish();
  }
  finished.reset();
  ASSERT_TRUE(writing->BeginFinish().ok());
  EXPECT_TRUE(absl::IsAborted(table_.Resume(StartOf("c"), 5, {}).status()));
  EXPECT_TRUE(absl::IsAborted(table_.Begin(StartOf("c"), {}).status()));
  const auth::Principal bob{"bob", auth::Role::kTrain, ""}, of_tenant{"root", auth::Role::kAdmin, "red"},
      admin{"root", auth::Role::kAdmin, ""};
  for (const auth::Principal& other : {bob, of_tenant}) {
    EXPECT_EQ(base::Reason(table_.Cancel(other, "a")), "UPLOAD") << other.name;
    EXPECT_TRUE(table_.List(other).empty());
  }
  EXPECT_EQ(table_.List(admin).size(), 3u);
  EXPECT_TRUE(table_.Cancel(admin, "a").ok());
  EXPECT_TRUE(absl::IsCancelled(ended_["a"])) << ended_["a"];
  EXPECT_TRUE(absl::IsCancelled(stream->Check()));
  EXPECT_TRUE(table_.Cancel(ann_, "b").ok());
  EXPECT_EQ(alive_, (std::set<std::string>{"c"})) << "although the stream of a has not ended";
  EXPECT_TRUE(table_.Cancel(ann_, "c").ok());
  EXPECT_TRUE(alive_.contains("c")) << "it is still being written";
  writing.reset();
  EXPECT_TRUE(alive_.empty());
  EXPECT_EQ(base::Reason(table_.Cancel(ann_, "a")), "UPLOAD");
  stream.reset();
  EXPECT_NE(Begin(StartOf("a"), 100), nullptr) << "all bytes are free again";
}

TEST_F(UploadTableTest, C10UploadCanBeginAgainUnderItsId) {
  Stream first = Begin(StartOf("a"), 60);
  const Stream second = Begin(StartOf("a"), 100);
  EXPECT_TRUE(absl::IsAborted(ended_["a"])) << ended_["a"];
  EXPECT_FALSE(first->Check().ok());
  first.reset();
  EXPECT_TRUE(second->Check().ok());
  EXPECT_EQ(Get("a").bytes, 100);
  EXPECT_EQ(base::ReasonMetadata(table_.Begin(StartOf("../a"), {}).status())["field"], "header.upload_id");
}

// The answer to the last message may be lost too.
TEST_F(UploadTableTest, C10AFinishedUploadAnswersAgain) {
  Stream stream = Begin(StartOf("a"), 60);
  absl::Time until;
  {
    base::MutexLock lock(stream->using_content());
    until = stream->Finish();
  }
  stream.reset();
  clock_.Advance(absl::Minutes(1));
  // The first of these streams is cut before its last message.
  for (const bool to_its_end : {false, true}) {
    auto again = table_.Resume(StartOf("a"), 60, {});
    ASSERT_TRUE(again.ok()) << again.status();
    base::MutexLock lock((*again)->using_content());
    if (to_its_end) {
      EXPECT_EQ((*again)->Finish(), until);
    }
  }
  EXPECT_EQ(Get("a").state, UploadState::kFinished);
  EXPECT_TRUE(table_.TakeFinished({"", "ann"}, "a").ok());
}

// docs/faults.md, C5.
TEST_F(UploadTableTest, C5AnUploadThatWasPutBackIsUsedLaterOrExpires) {
  const auto finish = [&](std::int64_t bytes) {
    const Stream stream = Begin(StartOf("a"), bytes);
    base::MutexLock lock(stream->using_content());
    stream->Finish();
  };
  const auto take_and_put_back = [&] {
    const auto taken = table_.TakeFinished({"", "ann"}, "a");
    ASSERT_TRUE(taken.ok()) << taken.status();
    clock_.Advance(absl::Minutes(9));
    table_.PutBack(*taken);
  };
  finish(60);
  take_and_put_back();
  take_and_put_back();
  EXPECT_EQ(Get("a").state, UploadState::kFinished);
  EXPECT_EQ(Get("a").expires, clock_.Now() + absl::Minutes(10));
  {
    const auto taken = table_.TakeFinished({"", "ann"}, "a");
    ASSERT_TRUE(taken.ok()) << taken.status();
    finish(40);
    table_.PutBack(*taken);
    EXPECT_EQ(Get("a").bytes, 40) << "a later upload with that id stays";
  }
  clock_.Advance(absl::Minutes(10));
  table_.DropOld();
  EXPECT_FALSE(Has("a"));
  EXPECT_TRUE(alive_.empty());
}

}  // namespace
}  // namespace nibble::registry
