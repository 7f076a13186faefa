// Serves "tiny" over the wire, for tests of the inference service.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <thread>
#include <vector>

#include "tests/server/model/files.h"
#include "tests/server/rpc/app_fixture.h"

namespace nibble {

using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::AppTest;
using testing_support::FieldOf;
using testing_support::ReasonOf;

class InferenceServiceTest : public AppTest {
 protected:
  void SetUp() override {
    AppTest::SetUp();
    Import("tiny");
  }
  grpc::Status Generate(const v1::GenerateRequest& request, v1::GenerateResponse* response) {
    grpc::ClientContext context;
    return inference_->Generate(&context, request, response);
  }
  v1::ServerLoad Load() {
    grpc::ClientContext context;
    v1::ServerLoad load;
    EXPECT_TRUE(server_->GetLoad(&context, {}, &load).ok());
    return load;
  }
  // Makes "tiny8" from "tiny".
  void MakeInt8() {
    v1::ConvertModelRequest convert;
    convert.set_model("tiny");
    convert.set_name("tiny8");
    convert.set_target(v1::MODEL_FORMAT_INT8);
    google::longrunning::Operation operation;
    grpc::ClientContext context;
    ASSERT_TRUE(models_->ConvertModel(&context, convert, &operation).ok());
    ASSERT_TRUE(Wait(operation).has_response());
  }
};

}  // namespace nibble
