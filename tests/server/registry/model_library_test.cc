// Calls ModelLibrary without the API, to check what tests over the wire cannot see directly.
#include "server/registry/model_library.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/base/error.h"
#include "server/base/sha256.h"
#include "server/convert/convert.h"
#include "server/plan/checkpoint_source.h"
#include "server/registry/uploaded_model.h"
#include "tests/server/model/small_models.h"
#include "tests/server/rpc/planted_checkpoint.h"
#include "tests/server/rpc/written_checkpoint.h"
#include "tests/support/field_of.h"
#include "tests/support/plain_library.h"

namespace nibble::registry {
namespace {

using model::Format;
using nibble::testing::FieldOf;
using ::testing::HasSubstr;

class Scope : public OperationScope {
 public:
  explicit Scope(std::string name = "operations/op-1") : name_(std::move(name)) {}
  void Progress(const std::string&, std::int64_t, std::int64_t) override {}
  bool cancelled() const override { return false; }
  base::CancelToken cancel() const override { return {}; }
  OperationIdentity identity() const override { return {.name = name_, .digest = "d"}; }
  void Hold(std::shared_ptr<const void> handle, absl::Duration) override { held_ = std::move(handle); }
  void Forget() { held_.reset(); }

 private:
  const std::string name_;
  std::shared_ptr<const void> held_;
};

class ModelLibraryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto state = store::StateDirectory::Open(base::RealFileSystem(), models_.Path("state"), {.min_free_bytes = 1});
    ASSERT_TRUE(state.ok()) << state.status();
    state_ = *std::move(state);
    stream_ = models_.stream();
    stream_.library = &dense_;
    texts_ = std::make_unique<TextCache>(*state_->models);
    tokens_ = std::make_unique<data::TokenCache>(base::RealFileSystem(), state_->paths.tokens(), /*threads=*/1,
                                                 data::TokenCacheOptions{.max_bytes = 1 << 20});
    ModelLibraryOptions options;
    options.upload_limits.max_files = 100;
    options.upload_limits.min_free_bytes = 1;
    options.find_checkpoint = [this](const std::string&, const std::string&) -> absl::StatusOr<CheckpointSource> {
      jobs::JobSpec spec;
      spec.base_model = "base";
      store::CheckpointInfo checkpoint;
      checkpoint.step = 3;
      checkpoint.directory = checkpoint_;
      CheckpointSource source = plan::CheckpointSourceOf(checkpoint, "job-1", spec);
      source.base_digest = base_digest_;
      return source;
    };
    library_ = std::make_unique<ModelLibrary>(*state_, *texts_, *tokens_, metrics_, base::RealClock(), uploads_,
                                              stream_, stream_, std::move(options));
    auto pending = state_->models->Begin("base");
    ASSERT_TRUE(pending.ok()) << pending.status();
    for (const auto& file : std::filesystem::directory_iterator(models_.bf16()))
      std::filesystem::copy(file.path(), (*pending)->directory());
    ASSERT_TRUE((*pending)->Commit().ok());
    auto rows = state_->datasets->Begin("page");
    ASSERT_TRUE(rows.ok()) << rows.status();
    const std::string bytes = "{\"text\": \"a b c d e f g h\"}\n{\"text\": \"c d e\"}\n";
    ASSERT_TRUE((*rows)->Append(bytes).ok());
    const auto meta = [](const std::string&) { return base::Json{{"format", "text"}, {"rows", 2}}; };
    ASSERT_TRUE((*rows)->Finish(base::Sha256Hex(bytes), meta).ok());
  }
  static ConvertRequest Conversion(const std::string& name) {
    ConvertRequest request;
    request.model = "base";
    request.name = name;
    request.target = Format::kInt8;
    request.eval_dataset = "page";
    return request;
  }
  // Adds a model as if it was published from a checkpoint of an int8_qt job: int8, with 4 outliers and a head in bf16.
  void AddInt8Checkpoint(const std::string& name) {
    const auto base = model::Artifact::Open(models_.bf16());
    ASSERT_TRUE(base.ok()) << base.status();
    auto pending = state_->models->Begin(name);
    ASSERT_TRUE(pending.ok()) << pending.status();
    const convert::ConvertOptions options = {.act_outliers = 4, .int8_head = false};
    auto made = convert::ConvertModel(base::RealFileSystem(), **base, (*pending)->directory(), options, stream_);
    ASSERT_TRUE(made.ok()) << made.status();
    made->info.source = "checkpoint";
    ASSERT_TRUE(model::WriteArtifactInfo(base::RealFileSystem(), (*pending)->directory(), made->info).ok());
    ASSERT_TRUE((*pending)->Commit().ok());
  }
  // Uploads the files in `directory` as "u".
  void Upload(const std::string& directory) {
    auto stream =
        uploads_.Begin({.owner = {}, .id = "u", .kind = UploadKind::kModel, .name = ""}, [](const absl::Status&) {});
    ASSERT_TRUE(stream.ok()) << stream.status();
    auto files = library_->BeginUpload();
    ASSERT_TRUE(files.ok()) << files.status();
    auto content = std::make_unique<UploadedModel>(*std::move(files));
    base::Sha256 digest;
    base::MutexLock lock((*stream)->using_content());
    for (const auto& file : std::filesystem::directory_iterator(directory)) {
      const std::string bytes = model::ReadBytes(file.path());
      const auto size = static_cast<std::int64_t>(bytes.size());
      ASSERT_TRUE(content->BeginFile({.path = file.path().filename(), .size_bytes = size, .sha256 = ""}).ok());
      ASSERT_TRUE(content->Append(bytes, **stream).ok());
      digest.Update(bytes);
    }
    ASSERT_TRUE(content->Finish(digest.HexDigest()).ok());
    (*stream)->content() = std::move(content);
    ASSERT_TRUE((*stream)->BeginFinish().ok());
    (*stream)->Finish();
  }

  model::SmallModels models_;
  support::PlainLibrary dense_;
  kernels::Stream stream_;
  telemetry::Metrics metrics_{{}, {}};
  UploadTable uploads_{base::RealClock(), {}};
  std::unique_ptr<store::StateDirectory> state_;
  std::unique_ptr<TextCache> texts_;
  std::unique_ptr<data::TokenCache> tokens_;
  std::unique_ptr<ModelLibrary> library_;
  std::string base_digest_;  // of the job's base; "": unknown
  std::string checkpoint_;
  Scope scope_;
};

TEST_F(ModelLibraryTest, ConversionBeyondItsToleranceReturnsItsReportAndMakesNoModel) {
  ConvertRequest request = Conversion("small");
  request.tolerance.max_eval_loss_delta = -100;
  ASSERT_TRUE(library_->converter().Check(request, "").ok());
  const auto outcome = library_->converter().Convert(request, scope_);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(base::Reason(outcome->tolerance), "CONVERSION_TOLERANCE") << outcome->tolerance;
  EXPECT_GT(outcome->report.eval_loss_before.value_or(0), 0);
  EXPECT_GT(outcome->report.eval_loss_after.value_or(0), 0);
  EXPECT_FALSE(outcome->report.layers.empty());
  EXPECT_TRUE(absl::IsNotFound(library_->Find("small").status()));
}

TEST_F(ModelLibraryTest, ConvertedModelHoldsItsReport) {
  const auto outcome = library_->converter().Convert(Conversion("small"), scope_);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_TRUE(outcome->tolerance.ok()) << outcome->tolerance;
  const auto made = library_->Find("small");
  ASSERT_TRUE(made.ok()) << made.status();
  const auto info = model::ParseArtifactInfo(made->info);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(outcome->report.source_format, Format::kBF16);
  EXPECT_EQ(outcome->report.target_format, Format::kInt8);
  EXPECT_EQ(outcome->report.target_digest, info->weights_digest);
  EXPECT_EQ(model::ReadBytes(made->directory + "/" + kConversionFile), ToJson(outcome->report));
}

TEST_F(ModelLibraryTest, VerifyReplaysTheRecordOfAConversion) {
  ASSERT_TRUE(library_->converter().Convert(Conversion("small"), scope_).ok());
  const auto report = library_->verifier().Verify("small", scope_);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->equal);
  EXPECT_GT(report->rows, 0);
  EXPECT_EQ(report->differing_rows, 0);
  EXPECT_FALSE(report->first_difference.has_value());
  EXPECT_EQ(report->recorded_by, "convert");
  EXPECT_EQ(base::Reason(library_->verifier().Verify("base", scope_).status()), "NO_RECORD");
}

TEST_F(ModelLibraryTest, ModelWithoutARecordSaysWhyAndWhatMakesOne) {
  AddInt8Checkpoint("step");
  const absl::Status of_checkpoint = library_->verifier().Verify("step", scope_).status();
  EXPECT_EQ(base::Reason(of_checkpoint), "NO_RECORD") << of_checkpoint;
  EXPECT_THAT(std::string(of_checkpoint.message()),
              ::testing::AllOf(HasSubstr("published from a checkpoint"), HasSubstr("convert step --to int8")));
  ConvertRequest request;
  request.model = "step";
  request.name = "copy";
  request.target = Format::kInt8;
  ASSERT_TRUE(library_->converter().Check(request, "").ok());
  const auto copied = library_->converter().Convert(request, scope_);
  ASSERT_TRUE(copied.ok()) << copied.status();
  const auto report = library_->verifier().Verify("copy", scope_);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->equal);
  const absl::Status of_float = library_->verifier().Verify("base", scope_).status();
  EXPECT_EQ(base::Reason(of_float), "NO_RECORD") << of_float;
  EXPECT_THAT(std::string(of_float.message()),
              ::testing::AllOf(HasSubstr("stored as bf16"), HasSubstr("convert base --to int8")));
}

TEST_F(ModelLibraryTest, OptionsThatACopyCannotChangeAreRefusedBeforeTheOperation) {
  AddInt8Checkpoint("step");
  ConvertRequest request;
  request.model = "step";
  request.name = "copy";
  request.target = Format::kInt8;
  request.act_outliers = 4;
  EXPECT_TRUE(library_->converter().Check(request, "").ok()) << "as it was trained";
  request.act_outliers = 5;
  EXPECT_EQ(FieldOf(library_->converter().Check(request, "")), "act_outliers");
  request.act_outliers.reset();
  request.head = Format::kInt8;
  EXPECT_EQ(FieldOf(library_->converter().Check(request, "")), "head");
}

TEST_F(ModelLibraryTest, ExportLastsAsLongAsItsOperation) {
  ExportRequest request;
  request.model = "base";
  request.format = ExportFormat::kHf;
  ASSERT_TRUE(library_->exporter().Check(request).ok());
  std::string id, directory;
  {
    const auto exported = library_->exporter().Export(request, scope_);
    ASSERT_TRUE(exported.ok()) << exported.status();
    id = (*exported)->artifact_id;
    directory = (*exported)->directory;
    for (const FileEntry& file : (*exported)->files) {
      const std::string bytes = model::ReadBytes(directory + "/" + file.path);
      EXPECT_EQ(file.size_bytes, static_cast<std::int64_t>(bytes.size())) << file.path;
      EXPECT_EQ(file.sha256, base::Sha256Hex(bytes)) << file.path;
    }
    EXPECT_FALSE((*exported)->files.empty());
  }
  EXPECT_TRUE(library_->exporter().Exported(id).ok());
  scope_.Forget();
  EXPECT_EQ(base::Reason(library_->exporter().Exported(id).status()), "ARTIFACT");
  EXPECT_FALSE(std::filesystem::exists(directory));
}

TEST_F(ModelLibraryTest, ExportRefusesFormatsOfOtherModels) {
  ExportRequest request;
  request.model = "base";
  for (const ExportFormat format : {ExportFormat::kPeft, ExportFormat::kHfBitNet, ExportFormat::kCompressedTensors}) {
    request.format = format;
    EXPECT_EQ(FieldOf(library_->exporter().Check(request)), "format");
  }
  request.format = ExportFormat::kHf;
  request.linear_class = convert::HfBitNetClass::kBitLinear;
  EXPECT_EQ(FieldOf(library_->exporter().Check(request)), "linear_class");
}

TEST_F(ModelLibraryTest, ImportUsesAnUploadOnce) {
  Upload(model::Golden("hf_tied_bf16"));
  ImportRequest request;
  request.name = "imported";
  EXPECT_EQ(FieldOf(library_->importer().Check(request, {})), "source");
  request.upload_id = "u";
  request.dtype = Format::kNf4;
  EXPECT_EQ(FieldOf(library_->importer().Check(request, {})), "dtype");
  request.dtype = Format::kF32;
  request.source_name = "hub/name";
  ASSERT_TRUE(library_->importer().Check(request, {}).ok());
  const absl::Status imported = library_->importer().Import(request, {}, scope_);
  ASSERT_TRUE(imported.ok()) << imported;
  const auto made = library_->Find("imported");
  ASSERT_TRUE(made.ok()) << made.status();
  const auto info = model::ParseArtifactInfo(made->info);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->format, Format::kF32);
  EXPECT_EQ(model::SourceName(*info), "hub/name");
  request.name = "again";
  EXPECT_EQ(base::Reason(library_->importer().Check(request, {})), "UPLOAD");
}

TEST_F(ModelLibraryTest, KnowsTheOperationThatMadeAModel) {
  ASSERT_TRUE(library_->converter().Convert(Conversion("small"), scope_).ok());
  EXPECT_TRUE(library_->WasMadeBy("small", scope_.identity()).value());
  EXPECT_FALSE(library_->WasMadeBy("small", Scope("operations/op-2").identity()).value());
  EXPECT_FALSE(library_->WasMadeBy("base", scope_.identity()).value());
  EXPECT_FALSE(library_->WasMadeBy("missing", scope_.identity()).value());
}

// Another model has the base's name: its weights are not those that the job was trained on.
TEST_F(ModelLibraryTest, CheckpointIsNotPublishedOnAReplacedBase) {
  checkpoint_ = testing_support::PlantCheckpoint(models_.Path("."), "job-1", 3, [this](const std::string& path) {
    testing_support::WriteAdapterCheckpoint(path, models_.bf16());
  });
  const PublishRequest request{.checkpoint = "job-1/3", .name = "tuned"};
  base_digest_ = std::string(64, 'a');
  EXPECT_EQ(base::Reason(library_->publisher().Check(request, "")), "BASE_MISMATCH") << "before the operation";
  const absl::Status refused = library_->publisher().Publish(request, "", scope_);
  EXPECT_EQ(base::Reason(refused), "BASE_MISMATCH") << refused;
  EXPECT_FALSE(state_->models->Get("tuned").ok());
  base_digest_ = model::Artifact::Open(models_.bf16()).value()->info().weights_digest;
  EXPECT_TRUE(library_->publisher().Publish(request, "", scope_).ok());
}

TEST_F(ModelLibraryTest, PublicationOfTheSameCheckpointCanBeRepeated) {
  const PublishRequest request{.checkpoint = "job-1/3", .name = "tuned"};
  checkpoint_ = testing_support::PlantCheckpoint(models_.Path("."), "job-1", 3, [this](const std::string& path) {
    testing_support::WriteAdapterCheckpoint(path, models_.bf16());
  });
  ASSERT_FALSE(checkpoint_.empty());
  ASSERT_TRUE(library_->publisher().Check(request, "").ok());
  const absl::Status published = library_->publisher().Publish(request, "", scope_);
  ASSERT_TRUE(published.ok()) << published;
  EXPECT_TRUE(library_->publisher().Check(request, "").ok());
  EXPECT_TRUE(library_->publisher().Publish(request, "", scope_).ok());
  const PublishRequest other{.checkpoint = "job-1/4", .name = "tuned"};
  EXPECT_TRUE(absl::IsAlreadyExists(library_->publisher().Check(other, "")));
  std::filesystem::remove_all(checkpoint_);
  const PublishRequest late{.checkpoint = "job-1/3", .name = "late"};
  EXPECT_EQ(base::Reason(library_->publisher().Publish(late, "", scope_)), "CHECKPOINT");
}

}  // namespace
}  // namespace nibble::registry
