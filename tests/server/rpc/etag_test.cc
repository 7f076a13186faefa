#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/server/rpc/app_fixture.h"

namespace nibble {
namespace {

using testing_support::AppTest;
using testing_support::ReasonOf;

// The current etag of the resource, from the error.
std::string EtagOf(const grpc::Status& status) {
  const google::rpc::Status details = testing_support::Details(status);
  for (const auto& detail : details.details()) {
    google::rpc::ErrorInfo info;
    if (!detail.UnpackTo(&info)) continue;
    const auto it = info.metadata().find("etag");
    return it == info.metadata().end() ? "(none)" : it->second;
  }
  return "(none)";
}

class EtagTest : public AppTest {
 protected:
  using AppTest::Import;
  void Import(const std::string& name, v1::ModelFormat dtype) {
    v1::ImportModelRequest request;
    request.set_server_path("hf_tied_bf16");
    request.set_name(name);
    request.set_dtype(dtype);
    google::longrunning::Operation operation;
    const grpc::Status status = Call(models_, &v1::ModelService::Stub::ImportModel, request, &operation);
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_TRUE(Wait(operation).has_response());
  }
};

TEST_F(EtagTest, OldEtagIsRefusedAndTheCurrentOneIsAccepted) {
  Import("tiny");
  v1::GetModelRequest get;
  get.set_name("tiny");
  v1::Model model;
  ASSERT_TRUE(Call(models_, &v1::ModelService::Stub::GetModel, get, &model).ok());
  ASSERT_FALSE(model.etag().empty());
  v1::DeleteModelRequest remove;
  remove.set_name("tiny");
  remove.set_etag("old");
  v1::DeleteModelResponse removed;
  grpc::Status status = Call(models_, &v1::ModelService::Stub::DeleteModel, remove, &removed);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(ReasonOf(status), "ETAG_MISMATCH");
  EXPECT_EQ(EtagOf(status), model.etag()) << "the error has the current etag, as for a job";
  // Another model has the name now: the model of the old etag is gone.
  remove.clear_etag();
  ASSERT_TRUE(Call(models_, &v1::ModelService::Stub::DeleteModel, remove, &removed).ok());
  Import("tiny", v1::MODEL_FORMAT_F32);
  const std::string before = model.etag();
  ASSERT_TRUE(Call(models_, &v1::ModelService::Stub::GetModel, get, &model).ok());
  ASSERT_NE(model.etag(), before);
  remove.set_etag(before);
  status = Call(models_, &v1::ModelService::Stub::DeleteModel, remove, &removed);
  EXPECT_EQ(EtagOf(status), model.etag()) << status.error_message();
  remove.set_etag(model.etag());
  EXPECT_TRUE(Call(models_, &v1::ModelService::Stub::DeleteModel, remove, &removed).ok());
  EXPECT_EQ(Call(models_, &v1::ModelService::Stub::GetModel, get, &model).error_code(), grpc::StatusCode::NOT_FOUND);

  const v1::Dataset dataset = Upload("page", "{\"text\": \"a b c\"}\n");
  v1::DeleteDatasetRequest drop;
  drop.set_name("page");
  drop.set_etag("old");
  v1::DeleteDatasetResponse dropped;
  status = Call(datasets_, &v1::DatasetService::Stub::DeleteDataset, drop, &dropped);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(ReasonOf(status), "ETAG_MISMATCH");
  EXPECT_EQ(EtagOf(status), dataset.etag());
  drop.set_name("none");
  EXPECT_EQ(ReasonOf(Call(datasets_, &v1::DatasetService::Stub::DeleteDataset, drop, &dropped)), "DATASET");
  drop.set_name("page");
  drop.set_etag(dataset.etag());
  EXPECT_TRUE(Call(datasets_, &v1::DatasetService::Stub::DeleteDataset, drop, &dropped).ok());
}

}  // namespace
}  // namespace nibble
