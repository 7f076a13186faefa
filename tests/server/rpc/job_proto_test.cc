#include "server/rpc/job_proto.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "google/protobuf/text_format.h"
#include "google/protobuf/util/message_differencer.h"
#include "google/rpc/error_details.pb.h"
#include "server/base/error.h"
#include "server/rpc/methods.h"
#include "server/rpc/time.h"

namespace nibble::rpc {
namespace {

TEST(JobProtoTest, NullFigureIsShownAsNanAndAbsentFigureAsZero) {
  jobs::StoredJob job;
  job.progress = *base::ParseJson(R"({"tokens_per_s":null,"tokens":null,"latest_eval":{"step":4,"eval_loss":null}})");
  const v1::Job shown = ToProto(job);
  EXPECT_TRUE(std::isnan(shown.latest_eval().eval_loss()));
  EXPECT_EQ(shown.latest_eval().step(), 4);
  EXPECT_EQ(shown.latest_eval().duration_ms(), 0);
  EXPECT_TRUE(std::isnan(shown.progress().tokens_per_s()));
  EXPECT_EQ(shown.progress().tokens(), 0);
}

TEST(JobProtoTest, DurationBeyondTheRangeOfAMessageIsClamped) {
  for (const absl::Duration forever : {absl::Seconds(9.2e18), absl::InfiniteDuration()}) {
    EXPECT_EQ(ToProto(forever).seconds(), 315'576'000'000);
    EXPECT_EQ(ToProto(-forever).seconds(), -315'576'000'000);
    EXPECT_EQ(ToProto(forever).nanos(), 0);
  }
  EXPECT_EQ(ToProto(absl::Milliseconds(1500)).seconds(), 1);
  EXPECT_EQ(ToProto(absl::Milliseconds(1500)).nanos(), 500'000'000);
}

// Messages that a trainer writes name its files; a user of the service must not see the paths.
TEST(JobProtoTest, EventsKeepNoPathOfTheServer) {
  for (const char* type : {"warning", "log", "state"}) {
    jobs::Event event;
    event.type = type;
    event.body = {{"state", "QUEUED"},
                  {"reason", "R"},
                  {"message", "write /state/jobs/j/checkpoints/moments.bin: No space left on device"}};
    const std::string shown = ToProto(jobs::StoredJob(), event).DebugString();
    EXPECT_NE(shown.find("moments.bin: No space left"), std::string::npos) << shown;
    EXPECT_EQ(shown.find("/state/jobs"), std::string::npos) << shown;
  }
}

TEST(JobProtoTest, UnsetSeedsAreThatOfTheRun) {
  v1::JobSpec spec;
  spec.mutable_qlora();
  spec.mutable_run()->set_seed(7);
  auto taken = FromProto(spec);
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->run.seed, 7);
  EXPECT_EQ(taken->qlora.seed, 7);
  EXPECT_EQ(taken->data.shuffle_seed, 7);
  spec.mutable_qlora()->set_seed(0);
  spec.mutable_data()->set_shuffle_seed(3);
  taken = FromProto(spec);
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->qlora.seed, 0);
  EXPECT_EQ(taken->data.shuffle_seed, 3);
}

TEST(JobProtoTest, AddSpecialTokensIsConvertedBothWays) {
  v1::JobSpec spec;
  spec.mutable_qlora();
  EXPECT_FALSE(ToProto(*FromProto(spec)).data().has_add_special_tokens());
  for (const bool add : {false, true}) {
    spec.mutable_data()->set_add_special_tokens(add);
    const auto taken = FromProto(spec);
    ASSERT_TRUE(taken.ok()) << taken.status();
    EXPECT_EQ(taken->data.add_special_tokens, add);
    const v1::JobSpec shown = ToProto(*taken);
    ASSERT_TRUE(shown.data().has_add_special_tokens());
    EXPECT_EQ(shown.data().add_special_tokens(), add);
  }
}

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Sets a field to a value that is neither its default nor the only implemented one, where the type of the field
// permits; for the exceptions see messages_and_defaults below.
void SetUnusual(Message& message, const FieldDescriptor* field) {
  const auto* r = message.GetReflection();
  if (field->is_map()) {
    r->AddMessage(&message, field);
    return;
  }
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      field->is_repeated() ? r->AddInt32(&message, field, 3) : r->SetInt32(&message, field, 3);
      break;
    case FieldDescriptor::CPPTYPE_INT64: r->SetInt64(&message, field, 3); break;
    case FieldDescriptor::CPPTYPE_DOUBLE: r->SetDouble(&message, field, 0.25); break;
    // Booleans whose default is true.
    case FieldDescriptor::CPPTYPE_BOOL: {
      static const std::set<std::string> on = {"shuffle",       "double_quant",        "evaluate_int8",
                                               "deterministic", "honour_message_flag", "allow_inexact_resume"};
      r->SetBool(&message, field, !on.contains(field->name()));
      break;
    }
    case FieldDescriptor::CPPTYPE_STRING:
      field->is_repeated() ? r->AddString(&message, field, "q_proj") : r->SetString(&message, field, "hf");
      break;
    case FieldDescriptor::CPPTYPE_ENUM: {
      // The last value; for packing another one, because the last value of packing is its default.
      const int at = field->name() == "packing" ? 1 : field->enum_type()->value_count() - 1;
      const auto* last = field->enum_type()->value(at);
      field->is_repeated() ? r->AddEnum(&message, field, last) : r->SetEnum(&message, field, last);
      break;
    }
    case FieldDescriptor::CPPTYPE_MESSAGE: r->MutableMessage(&message, field); break;
    default: FAIL() << field->full_name();
  }
}

// Calls visit(spec, field) for each field below JobSpec; `spec` has only this field and a method.
void ForEachSpecField(const std::function<void(const v1::JobSpec&, const FieldDescriptor&)>& visit) {
  using Path = std::vector<const FieldDescriptor*>;
  const std::function<void(const Descriptor*, const Path&)> walk = [&](const Descriptor* type, const Path& path) {
    for (int i = 0; i < type->field_count(); ++i) {
      const FieldDescriptor* field = type->field(i);
      v1::JobSpec spec;
      spec.mutable_qlora();
      Message* message = &spec;
      for (const FieldDescriptor* step : path) message = message->GetReflection()->MutableMessage(message, step);
      SetUnusual(*message, field);
      visit(spec, *field);
      if (field->message_type() == nullptr || field->is_repeated()) continue;
      if (field->message_type()->file()->package() == "google.protobuf") continue;
      Path longer = path;
      longer.push_back(field);
      walk(field->message_type(), longer);
    }
  };
  walk(v1::JobSpec::descriptor(), {});
}

// A field that the server neither reads nor refuses would be ignored silently.
TEST(JobProtoTest, EveryFieldIsReadOrListedAsUnimplemented) {
  std::set<std::string> listed;
  for (const std::string name : kUnimplemented) listed.insert(name.substr(0, name.find(' ')));
  const std::string plain = jobs::Digest(*[] {
    v1::JobSpec spec;
    spec.mutable_qlora();
    return FromProto(spec);
  }());
  int read = 0, refused = 0;
  ForEachSpecField([&](const v1::JobSpec& spec, const FieldDescriptor& field) {
    const std::string name = field.containing_type()->name() + "." + field.name();
    const auto taken = FromProto(spec);
    if (absl::IsUnimplemented(taken.status())) {
      const std::string refusal = base::ReasonMetadata(taken.status())["name"];
      EXPECT_TRUE(listed.contains(refusal.substr(0, refusal.find(' ')))) << name << ": " << refusal;
      ++refused;
      return;
    }
    if (name == "JobSpec.runtime" || field.containing_type()->name() == "RuntimeRecord") {
      EXPECT_EQ(base::ReasonMetadata(taken.status())["field"], "runtime");
      return;
    }
    ASSERT_TRUE(taken.ok()) << name << ": " << taken.status();
    static const std::set<std::string> messages_and_defaults = {"JobSpec.qlora",
                                                                "JobSpec.data",
                                                                "JobSpec.optim",
                                                                "JobSpec.run",
                                                                "JobSpec.publish",
                                                                "DataConfig.loss_mask",
                                                                "BitNetQatMethod.warmup_lambda",
                                                                "RunConfig.deterministic",
                                                                "JobSpec.device",
                                                                "Device.ordinal",
                                                                "LossMask.eos",
                                                                "BitNetQatMethod.weight_scale",
                                                                "QLoraMethod.compute_dtype",
                                                                "BitNetQatMethod.compute_dtype",
                                                                "BitNetQatMethod.master_dtype",
                                                                "JobSpec.labels"};
    if (messages_and_defaults.contains(name)) return;
    EXPECT_NE(jobs::Digest(*taken), plain) << name << " is accepted and changes nothing";
    ++read;
  });
  EXPECT_GT(read, 35);
  EXPECT_GT(refused, 20);
}

TEST(JobProtoTest, SpecIsUnchangedAfterBothWays) {
  ForEachSpecField([&](const v1::JobSpec& spec, const FieldDescriptor& field) {
    const auto taken = FromProto(spec);
    if (!taken.ok()) return;
    const auto again = FromProto(ToProto(*taken));
    ASSERT_TRUE(again.ok()) << field.full_name() << ": " << again.status();
    EXPECT_EQ(base::Dump(jobs::ToJson(*again)), base::Dump(jobs::ToJson(*taken))) << field.full_name();
  });
}

// The specs that GetJob and PlanJob return must not change.
TEST(JobProtoTest, ReturnedSpecsAreComplete) {
  v1::JobSpec spec;
  spec.mutable_qlora();
  spec.set_base_model("b");
  spec.set_train_dataset("d");
  const v1::JobSpec qlora = ToProto(jobs::Resolve(*FromProto(spec), "job-1", "chat", "cpu"));
  v1::JobSpec wanted;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(R"(
    base_model: "b"
    qlora {
      r: 16 alpha: 32 dropout: 0
      target_modules: "q_proj" target_modules: "k_proj" target_modules: "v_proj" target_modules: "o_proj"
      target_modules: "gate_proj" target_modules: "up_proj" target_modules: "down_proj"
      use_rslora: false seed: 0 double_quant: true compute_dtype: COMPUTE_DTYPE_BF16
      lora_plus_ratio: 1 merge_aware_int8: false use_dora: false
    }
    device { kind: DEVICE_KIND_CPU }
    train_dataset: "d"
    data {
      format: DATASET_FORMAT_CHAT loss_mask { train_on_prompt: false } max_seq_len: 512
      overlong: OVERLONG_POLICY_TRUNCATE packing: PACKING_MODE_SEGMENTED shuffle_seed: 0 shuffle: true
    }
    optim {
      optimizer: OPTIMIZER_ADAMW lr: 0.0002 beta1: 0.9 beta2: 0.999 eps: 1e-8 weight_decay: 0 max_grad_norm: 1
      schedule: LR_SCHEDULE_COSINE warmup_ratio: 0.03 min_lr_ratio: 0
    }
    run {
      epochs: 1 micro_batch: 4 grad_accum: 1 activation_checkpointing: false eval_every: 0 save_every: 50 keep_last: 2
      seed: 0 priority: 0 deterministic: true allow_inexact_resume: true
    }
    publish { output_model: "job-1" evaluate_int8: true })",
                                                            &wanted));
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(qlora, wanted)) << qlora.DebugString();
  spec.mutable_bitnet_qat();
  const v1::JobSpec bitnet = ToProto(jobs::Resolve(*FromProto(spec), "job-1", "chat", "cpu"));
  wanted.Clear();
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(R"(bitnet_qat {
    preset: "native" weight_scale: WEIGHT_SCALE_ABSMEAN_TENSOR act_scale: ACTIVATION_SCALE_PER_TOKEN act_bits: 8
    ste: STE_MODE_IDENTITY scale_grad: false init: WEIGHT_INIT_PRETRAINED modules_to_not_convert: "lm_head"
    master_dtype: COMPUTE_DTYPE_F32 compute_dtype: COMPUTE_DTYPE_BF16 })",
                                                            &wanted));
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(bitnet.bitnet_qat(), wanted.bitnet_qat()))
      << bitnet.DebugString();
}

TEST(JobProtoTest, CancelledJobNamesTheUserAsItsReason) {
  jobs::StoredJob job;
  job.state = jobs::JobState::kCancelled;
  job.error = jobs::JobError{"CANCELLED", "USER", "cancelled by the user"};
  const v1::Job shown = ToProto(job);
  EXPECT_EQ(shown.error().code(), static_cast<int>(absl::StatusCode::kCancelled));
  EXPECT_EQ(shown.state_reason().reason(), "USER");
  google::rpc::ErrorInfo info;
  for (const auto& detail : shown.error().details()) detail.UnpackTo(&info);
  EXPECT_EQ(info.reason(), "USER");
  EXPECT_EQ(info.metadata().at("fault"), "user");
}

TEST(JobProtoTest, EpochOfAJobIsAFractionAndOfAStepWholePasses) {
  jobs::StoredJob job;
  job.progress = *base::ParseJson(R"({"epoch":1.25,"latest_step":{"step":5,"epoch":1,"epochs_done":1.25}})");
  const v1::Job shown = ToProto(job);
  EXPECT_EQ(shown.progress().epoch(), 1.25);
  EXPECT_EQ(shown.latest_step().epoch(), 1);
}

TEST(JobProtoTest, CheckpointEventsHaveTheirMetrics) {
  jobs::Event event;
  event.type = "checkpoint";
  event.body = {{"step", 5}, {"metrics", {{"loss", 2.5}, {"eval_loss", 3.5}, {"note", "none"}}}};
  const v1::JobEvent shown = ToProto(jobs::StoredJob(), event);
  const auto& metrics = shown.checkpoint().checkpoint().metrics();
  EXPECT_EQ(metrics.size(), 2u);
  EXPECT_EQ(metrics.at("loss"), 2.5);
  EXPECT_EQ(metrics.at("eval_loss"), 3.5);
}

TEST(JobProtoTest, WarningsNameAtMostTwentyRows) {
  jobs::Event event;
  event.type = "warning";
  event.body = {{"reason", "ROWS_TRUNCATED"}, {"message", "2 of 9 rows"}, {"row_ids", {4, "x", 9, 1.5, nullptr}}};
  v1::JobEvent shown = ToProto(jobs::StoredJob(), event);
  ASSERT_EQ(shown.warning().row_ids_size(), 2) << shown.DebugString();
  EXPECT_EQ(shown.warning().row_ids(0), 4);
  EXPECT_EQ(shown.warning().row_ids(1), 9);
  event.body["row_ids"] = std::vector<std::int64_t>(100, 7);
  shown = ToProto(jobs::StoredJob(), event);
  EXPECT_EQ(shown.warning().row_ids_size(), 20);
  event.body["row_ids"] = "all";
  EXPECT_EQ(ToProto(jobs::StoredJob(), event).warning().row_ids_size(), 0);
}

TEST(JobProtoTest, QueuedJobShowsWhyItsLastAttemptEnded) {
  jobs::StoredJob job;
  EXPECT_FALSE(ToProto(job).has_state_reason());
  job.wait_reason = "TRAINER_LOST";
  job.wait_message = "the trainer was killed; retry 1 of 5 in 10 s";
  EXPECT_EQ(ToProto(job).state_reason().reason(), "TRAINER_LOST");
  EXPECT_EQ(ToProto(job).state_reason().message(), job.wait_message);
}

TEST(JobProtoTest, JobShowsItsDigestsAndItsBestCheckpoint) {
  jobs::StoredJob job;
  job.id = "job-1";
  job.digests = {.config = "a", .data = "b", .eval_data = "c", .tokenizer = "d", .code = "e", .base_model = "f"};
  EXPECT_FALSE(ToProto(job).has_best_checkpoint());
  job.best_checkpoint.emplace();
  job.best_checkpoint->step = 5;
  job.best_checkpoint->metrics["eval_loss"] = 2.5;
  const v1::Job shown = ToProto(job);
  EXPECT_EQ(shown.best_checkpoint().name(), "job-1/5");
  EXPECT_EQ(shown.best_checkpoint().metrics().at("eval_loss"), 2.5);
  const v1::JobDigests& digests = shown.digests();
  EXPECT_EQ(digests.config() + digests.data() + digests.eval_data() + digests.tokenizer() + digests.code() +
                digests.base_model(),
            "abcdef");
}

TEST(JobProtoTest, RampOfBitNetIsConvertedBothWays) {
  v1::JobSpec spec;
  spec.mutable_bitnet_qat();
  EXPECT_FALSE(ToProto(*FromProto(spec)).bitnet_qat().has_warmup_lambda());
  spec.mutable_bitnet_qat()->mutable_warmup_lambda()->set_steps(5);
  const auto taken = FromProto(spec);
  ASSERT_TRUE(taken.ok()) << taken.status();
  ASSERT_TRUE(taken->bitnet_qat.has_ramp());
  EXPECT_EQ(taken->bitnet_qat.warmup_lambda->from, 0.0);
  EXPECT_EQ(taken->bitnet_qat.warmup_lambda->to, 1.0);
  const v1::LambdaSchedule shown = ToProto(*taken).bitnet_qat().warmup_lambda();
  EXPECT_EQ(shown.from(), 0.0);
  EXPECT_EQ(shown.to(), 1.0);
  EXPECT_EQ(shown.steps(), 5);
}

TEST(JobProtoTest, UnknownEnumsOfBitNetAreRefused) {
  const auto taken = [](const std::function<void(v1::BitNetQatMethod&)>& change) {
    v1::JobSpec spec;
    change(*spec.mutable_bitnet_qat());
    return FromProto(spec).status();
  };
  const auto dtype = taken([](auto& m) { m.set_master_dtype(static_cast<v1::ComputeDtype>(77)); });
  EXPECT_TRUE(absl::IsInvalidArgument(dtype)) << dtype;
  EXPECT_EQ(base::ReasonMetadata(dtype)["field"], "bitnet_qat.master_dtype");
  const auto scale = taken([](auto& m) { m.set_weight_scale(static_cast<v1::WeightScale>(77)); });
  EXPECT_TRUE(absl::IsInvalidArgument(scale)) << scale;
  EXPECT_EQ(base::ReasonMetadata(scale)["field"], "bitnet_qat.weight_scale");
  EXPECT_TRUE(taken([](auto& m) { m.set_master_dtype(v1::COMPUTE_DTYPE_BF16); }).ok());
  const auto defaults = taken([](auto& m) {
    m.set_master_dtype(v1::COMPUTE_DTYPE_F32);
    m.set_weight_scale(v1::WEIGHT_SCALE_ABSMEAN_TENSOR);
    m.mutable_warmup_lambda()->set_from(0.0);
    m.mutable_warmup_lambda()->set_to(1.0);
    m.mutable_warmup_lambda()->set_steps(0);
  });
  EXPECT_TRUE(defaults.ok()) << defaults;
}

}  // namespace
}  // namespace nibble::rpc
