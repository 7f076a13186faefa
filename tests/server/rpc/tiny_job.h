// A small job for tests: two steps on the model "tiny" and the dataset "texts".
#pragma once
#include "nibble/v1/fine_tune_service.pb.h"

namespace nibble::testing_support {

inline constexpr char kTinyTexts[] = "{\"text\": \"a b c d e\"}\n{\"text\": \"c d e\"}\n";

inline v1::CreateJobRequest TinyJob() {
  v1::CreateJobRequest request;
  auto* spec = request.mutable_spec();
  spec->set_base_model("tiny");
  spec->set_train_dataset("texts");
  spec->mutable_qlora()->set_r(4);
  spec->mutable_run()->set_max_steps(2);
  spec->mutable_publish()->set_output_model("out");
  return request;
}

}  // namespace nibble::testing_support
