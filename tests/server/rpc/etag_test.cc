#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/rpc/app_fixture.h"

namespace nibble {
namespace {

using testing_support::AppTest;
using testing_support::ReasonOf;

class EtagTest : public AppTest {};

TEST_F(EtagTest, AnOldEtagIsRefusedAndTheRightOneTaken) {
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
  drop.set_etag(dataset.etag());
  EXPECT_TRUE(Call(datasets_, &v1::DatasetService::Stub::DeleteDataset, drop, &dropped).ok());
}

}  // namespace
}  // namespace nibble
