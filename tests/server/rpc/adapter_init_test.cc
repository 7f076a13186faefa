// Conversions that also make an initial adapter (PiSSA, LoftQ), over the wire.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "server/base/hooked_files.h"
#include "server/model/artifact.h"
#include "tests/server/rpc/model_service_fixture.h"

namespace nibble {
namespace {

class AdapterInitServiceTest : public ModelServiceTest {
 protected:
  static v1::ConvertModelRequest Request(const std::string& name, v1::ModelFormat target = v1::MODEL_FORMAT_NF4) {
    v1::ConvertModelRequest request;
    request.set_model("source");
    request.set_name(name);
    request.set_target(target);
    v1::AdapterInit& init = *request.mutable_adapter_init();
    init.set_method(v1::ADAPTER_INIT_METHOD_PISSA);
    init.set_name(name + "-adapter");
    init.set_r(4);
    init.set_alpha(8);
    init.add_target_modules("q_proj");
    init.add_target_modules("down_proj");
    return request;
  }
  grpc::Status Start(const v1::ConvertModelRequest& request, longrunning::Operation* operation) {
    return Call(models_, &v1::ModelService::Stub::ConvertModel, request, operation);
  }
  v1::ConvertModelResponse Converted(const v1::ConvertModelRequest& request) {
    longrunning::Operation operation;
    const grpc::Status status = Start(request, &operation);
    EXPECT_TRUE(status.ok()) << status.error_message();
    v1::ConvertModelResponse response;
    const longrunning::Operation done = Wait(operation);
    EXPECT_TRUE(done.response().UnpackTo(&response)) << done.error().message();
    return response;
  }
  bool Exists(const std::string& name) {
    v1::GetModelRequest request;
    request.set_name(name);
    v1::Model model;
    return Call(models_, &v1::ModelService::Stub::GetModel, request, &model).ok();
  }
};

TEST_F(AdapterInitServiceTest, MakesABaseAndAnAdapterOnIt) {
  Import("source");
  AppTest::Upload("page", "{\"text\": \"the light of the keeper was seen from far away\"}\n");
  v1::ConvertModelRequest request = Request("base");
  (*request.mutable_adapter_init()->mutable_rank_pattern())["down_proj"] = 2;
  request.set_eval_dataset("page");
  const v1::ConvertModelResponse made = Converted(request);
  EXPECT_EQ(made.model().name(), "base");
  EXPECT_EQ(made.model().format(), v1::MODEL_FORMAT_NF4);
  EXPECT_EQ(made.adapter().name(), "base-adapter");
  EXPECT_EQ(made.adapter().format(), v1::MODEL_FORMAT_LORA);
  EXPECT_EQ(made.adapter().base_model(), "base");
  EXPECT_EQ(made.adapter().base_digest(), made.model().digest());
  EXPECT_EQ(made.adapter().origin(), v1::MODEL_ORIGIN_CONVERT);
  EXPECT_EQ(made.report().adapter(), "base-adapter");
  EXPECT_EQ(Get("base").conversion().adapter(), "base-adapter");
  // The loss is that of the base with its adapter: the residual base alone would be far off.
  EXPECT_NEAR(made.report().eval_loss_after(), made.report().eval_loss_before(), 0.05);
  EXPECT_EQ(made.report().layers_size(), 2 * 7);
  const auto artifact = model::Artifact::Open(directory_ + "/state/models/base-adapter");
  ASSERT_TRUE(artifact.ok()) << artifact.status();
  EXPECT_EQ((*artifact)->adapter()->base_model_name_or_path, "base");
  EXPECT_EQ((*artifact)->adapter()->On("model.layers.1.mlp.down_proj")->rank, 2);
  EXPECT_EQ((*artifact)->adapter()->On("model.layers.0.self_attn.q_proj")->scaling, 2.0);
}

TEST_F(AdapterInitServiceTest, RepeatedRequestReturnsTheFirstResponseAfterItsAdapterIsDeleted) {
  Import("source");
  v1::ConvertModelRequest request = Request("base", v1::MODEL_FORMAT_F32);
  request.set_request_id("once");
  Converted(request);
  v1::DeleteModelRequest removal;
  removal.set_name("base-adapter");
  v1::DeleteModelResponse removed;
  ASSERT_TRUE(Call(models_, &v1::ModelService::Stub::DeleteModel, removal, &removed).ok());
  EXPECT_EQ(Get("base").conversion().adapter(), "base-adapter");
  EXPECT_EQ(Converted(request).adapter().name(), "base-adapter") << "a repeated request returns the first response";
}

TEST_F(AdapterInitServiceTest, ExceededToleranceMakesNeitherModel) {
  Import("source");
  AppTest::Upload("page", "{\"text\": \"the light of the keeper was seen from far away\"}\n");
  v1::ConvertModelRequest request = Request("base");
  request.set_eval_dataset("page");
  request.mutable_tolerance()->set_max_eval_loss_delta(-1);
  longrunning::Operation operation;
  ASSERT_TRUE(Start(request, &operation).ok());
  EXPECT_EQ(ReasonOf(Wait(operation).error()), "CONVERSION_TOLERANCE");
  EXPECT_FALSE(Exists("base"));
  EXPECT_FALSE(Exists("base-adapter"));
  request.clear_tolerance();
  EXPECT_EQ(Converted(request).adapter().name(), "base-adapter") << "both names are free again";
}

// Refuses to publish the model "broken".
class BrokenRename {
 public:
  template <typename Work>
  auto Around(std::string_view operation, const std::string& path, Work work) -> decltype(work()) {
    if (operation == "rename" && path.ends_with("/models/broken")) return absl::InternalError("injected");
    return work();
  }
  template <typename Write>
  absl::Status Append(const std::string& /*path*/, std::string_view bytes, Write write) {
    return write(bytes);
  }
};

class AdapterInitFailureTest : public AdapterInitServiceTest {
 protected:
  AppOptions Options() override {
    AppOptions options = AdapterInitServiceTest::Options();
    options.files = &files_;
    return options;
  }

 private:
  base::HookedFiles<BrokenRename> files_{base::RealFileSystem()};
};

TEST_F(AdapterInitFailureTest, AdapterWhoseBaseCannotBePublishedIsRemoved) {
  Import("source");
  longrunning::Operation operation;
  ASSERT_TRUE(Start(Request("broken"), &operation).ok());
  EXPECT_TRUE(Wait(operation).has_error());
  EXPECT_FALSE(Exists("broken"));
  EXPECT_FALSE(Exists("broken-adapter"));
  v1::ConvertModelRequest request = Request("whole");
  request.mutable_adapter_init()->set_name("broken-adapter");
  EXPECT_EQ(Converted(request).adapter().name(), "broken-adapter") << "its name is free again";
}

TEST_F(AdapterInitServiceTest, TakenNamesAreRefusedBeforeAnyWork) {
  Import("source");
  Converted(Request("base"));
  longrunning::Operation operation;
  v1::ConvertModelRequest request = Request("other");
  request.mutable_adapter_init()->set_name("base");
  EXPECT_EQ(ReasonOf(Start(request, &operation)), "NAME_TAKEN");
  request = Request("base");
  request.mutable_adapter_init()->set_name("free");
  EXPECT_EQ(ReasonOf(Start(request, &operation)), "NAME_TAKEN");
}

TEST_F(AdapterInitServiceTest, RefusesBadFieldsByName) {
  Import("source");
  ASSERT_TRUE(Convert("source", "four", v1::MODEL_FORMAT_NF4).has_response());
  struct Refusal {
    const char *field, *text;
    std::function<void(v1::ConvertModelRequest&, v1::AdapterInit&)> edit;
  };
  const Refusal refusals[] = {
      {"adapter_init.method", "is not set, wanted PISSA or LOFTQ", [](auto&, auto& i) { i.clear_method(); }},
      {"adapter_init.method", "is 99", [](auto&, auto& i) { i.set_method(static_cast<v1::AdapterInitMethod>(99)); }},
      {"adapter_init.name", "", [](auto&, auto& i) { i.clear_name(); }},
      {"adapter_init.name", "", [](auto&, auto& i) { i.set_name("../up"); }},
      {"adapter_init.name", "like the base", [](auto&, auto& i) { i.set_name("new"); }},
      {"adapter_init.r", "is 0, wanted 1 to 4096", [](auto&, auto& i) { i.set_r(0); }},
      {"adapter_init.r", "q_proj.weight [32, 32] the rank 40, wanted at most 32", [](auto&, auto& i) { i.set_r(40); }},
      {"adapter_init.alpha", "is 0, wanted above 0", [](auto&, auto& i) { i.set_alpha(0); }},
      {"adapter_init.target_modules", "has \"head\"", [](auto&, auto& i) { i.add_target_modules("head"); }},
      {"adapter_init.target_pattern", "together with target_modules",
       [](auto&, auto& i) { i.set_target_pattern(".*q_proj"); }},
      {"adapter_init.target_pattern", "matches no linear of the decoder",
       [](auto&, auto& i) {
         i.clear_target_modules();
         i.set_target_pattern(".*none");
       }},
      {"adapter_init.rank_pattern", "is 0, wanted 1 to 4096",
       [](auto&, auto& i) { (*i.mutable_rank_pattern())["q_proj"] = 0; }},
      {"adapter_init.alpha_pattern", "matches no linear",
       [](auto&, auto& i) { (*i.mutable_alpha_pattern())["v_proj"] = 2; }},
      {"adapter_init.iterations", "wanted 1 for PISSA", [](auto&, auto& i) { i.set_iterations(2); }},
      {"adapter_init.iterations", "is 0, wanted 1 to 16",
       [](auto&, auto& i) {
         i.set_method(v1::ADAPTER_INIT_METHOD_LOFTQ);
         i.set_iterations(0);
       }},
      {"target", "NF4, BF16 or F32", [](auto& r, auto&) { r.set_target(v1::MODEL_FORMAT_INT8); }},
      {"target", "NF4, BF16 or F32", [](auto& r, auto&) { r.set_target(v1::MODEL_FORMAT_TERNARY); }},
      {"target", "bf16 cannot be the base of a loftq adapter",
       [](auto& r, auto& i) {
         r.set_target(v1::MODEL_FORMAT_BF16);
         i.set_method(v1::ADAPTER_INIT_METHOD_LOFTQ);
       }},
      {"target", "wanted INT8, TERNARY, NF4 or BF16",
       [](auto& r, auto&) {
         r.set_target(v1::MODEL_FORMAT_F32);
         r.clear_adapter_init();
       }},
      {"act_outliers", "applies only to INT8", [](auto& r, auto&) { r.set_act_outliers(0); }},
      {"nf4_block", "applies only to NF4",
       [](auto& r, auto&) {
         r.set_target(v1::MODEL_FORMAT_BF16);
         r.set_nf4_block(64);
       }},
      {"adapter_init", "a model in format nf4, wanted an f32 or bf16 model",
       [](auto& r, auto&) { r.set_model("four"); }},
  };
  for (const Refusal& refusal : refusals) {
    v1::ConvertModelRequest request = Request("new");
    v1::AdapterInit init = request.adapter_init();
    refusal.edit(request, init);
    if (request.has_adapter_init()) *request.mutable_adapter_init() = init;
    longrunning::Operation operation;
    const grpc::Status status = Start(request, &operation);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << refusal.field << status.error_message();
    EXPECT_EQ(FieldOf(status), refusal.field) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(refusal.text));
  }
}

}  // namespace
}  // namespace nibble
