// F6: a job spec, as JSON (attempt.json, the client's --spec) if the input begins with "{", else as the bytes of a
// nibble.v1.JobSpec. A valid spec resolves, is unchanged after writing and reading as JSON, is accepted as a message,
// and is planned for a small model and two rows: the plan has valid numbers, or is refused as the caller's fault.
#include <cmath>
#include <fstream>
#include <string>

#include "server/base/files.h"
#include "server/base/json.h"
#include "server/jobs/job_spec.h"
#include "server/model/text_assets.h"
#include "server/plan/plan_job.h"
#include "server/rpc/job_proto.h"
#include "server/rpc/status.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/temp_directory.h"

using nibble::fuzz::Expect;
using nibble::fuzz::ExpectClean;
namespace jobs = nibble::jobs;
namespace plan = nibble::plan;

namespace {

constexpr std::int64_t kLongest = 1 << 20;  // so that no input is refused because of the model's length

// The golden model, and one file of rows per format.
class Inputs {
 public:
  Inputs() {
    static constexpr char kModel[] = NIBBLE_SOURCE_DIR "/tests/golden/model/hf_tied_bf16";
    const auto text = nibble::base::RealFileSystem().Read(std::string(kModel) + "/config.json", 1 << 20);
    Expect(text.ok(), "the golden model has a config.json");
    const auto json = nibble::base::ParseJson(*text);
    Expect(json.ok(), "config.json is JSON");
    const auto config = nibble::model::ParseHfConfig(*json);
    Expect(config.ok(), "config.json is a valid config");
    const auto assets = nibble::model::LoadTextAssets(kModel);
    Expect(assets.ok(), "the golden model has a tokenizer");
    inputs_.config = *config;
    inputs_.config.max_positions = kLongest;
    inputs_.text = *assets;
    inputs_.base_format = "bf16";
    inputs_.devices = {"cpu", "cuda:0"};
    Write("text", R"({"text": "the man in the land"})", R"({"text": "an end"})");
    Write("prompt_completion", R"({"prompt": "the ", "completion": "land"})",
          R"({"prompt": "", "completion": "a man and the thin end"})");
    Write("chat", R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "the end"}]})",
          R"({"messages": [{"role": "assistant", "content": "in the land"}]})");
    // If the default specs had no plan, the corpus would not test plans.
    for (const char* format : {"text", "prompt_completion", "chat"}) {
      jobs::JobSpec spec;
      spec.data.format = format;
      Expect(plan::PlanJob(jobs::Resolve(spec, "job-1", "text", "cpu"), Of(format, /*with_eval=*/true)).ok(),
             "the default spec has a plan");
    }
  }

  plan::JobInputs Of(const std::string& format, bool with_eval) const {
    plan::JobInputs inputs = inputs_;
    inputs.train.format = format;
    inputs.train.path = directory_ / format;
    if (with_eval) {
      inputs.eval.path = inputs.train.path;
      inputs.eval.format = format;
    }
    return inputs;
  }

 private:
  void Write(const std::string& format, const char* first, const char* second) {
    std::ofstream(directory_ / format) << first << '\n' << second << '\n';
  }

  const nibble::testing::TempDirectory directory_;
  plan::JobInputs inputs_;
};

void FuzzPlan(const jobs::JobSpec& spec, std::string_view input) {
  static const Inputs inputs;
  const auto planned = plan::PlanJob(spec, inputs.Of(*spec.data.format, !spec.eval_dataset.empty()));
  if (!planned.ok()) {
    Expect(absl::IsInvalidArgument(planned.status()), "a refused plan is the caller's fault");
    Expect(!nibble::rpc::ToGrpcStatus(planned.status()).error_message().empty(), "a refusal says why");
    ExpectClean(planned.status(), input);
    return;
  }
  Expect(planned->max_steps >= 1, "a job has a step");
  Expect(planned->tokens >= planned->trained_tokens && planned->trained_tokens >= 0, "tokens are counted");
  Expect(planned->trained_parameters > 0, "something is trained");
  for (const plan::MemoryItem& item : planned->memory) Expect(item.bytes >= 0, "memory is not negative");
  Expect(planned->memory_bytes() > 0, "memory has a sum");
  Expect(nibble::rpc::ToProto(*planned).memory_size() == static_cast<int>(planned->memory.size()),
         "a plan can be sent");
}

void FuzzSpec(const jobs::JobSpec& spec, std::string_view input) {
  const absl::Status valid = jobs::Validate(spec);
  Expect(valid.ok() == (jobs::FindViolations(spec).empty() && valid.code() != absl::StatusCode::kUnimplemented),
         "a spec is valid if and only if it has no violation");
  if (!valid.ok()) {
    Expect(!nibble::rpc::ToGrpcStatus(valid).error_message().empty(), "a refusal says why");
    ExpectClean(valid, input);
    return;
  }
  Expect(std::isfinite(spec.optim.lr) && std::isfinite(spec.qlora.alpha) && spec.qlora.r > 0 &&
             spec.run.micro_batch > 0 && spec.data.max_seq_len > 0,
         "valid numbers can be computed with");
  const jobs::JobSpec resolved = jobs::Resolve(spec, "job-1", "text", "cpu");
  const auto again = jobs::ParseJobSpec(jobs::ToJson(resolved));
  Expect(again.ok() && jobs::ToJson(*again) == jobs::ToJson(resolved), "a spec is unchanged after writing and reading");
  Expect(nibble::rpc::FromProto(nibble::rpc::ToProto(resolved)).ok(), "a spec sent as a message is accepted again");
  const absl::Status fits = jobs::Validate(resolved);  // resolved defaults may contradict the given values
  ExpectClean(fits, input);
  if (fits.ok()) FuzzPlan(resolved, input);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input = nibble::fuzz::Text(data, size);
  if (size > 0 && data[0] == '{') {
    const auto json = nibble::base::ParseJson(input);
    ExpectClean(json.status(), input);
    if (!json.ok()) return 0;
    const auto spec = jobs::ParseJobSpec(*json);
    ExpectClean(spec.status(), input);
    if (spec.ok()) FuzzSpec(*spec, input);
    return 0;
  }
  nibble::v1::JobSpec message;
  if (size > std::size_t{1} << 20 || !message.ParseFromArray(data, static_cast<int>(size))) return 0;
  const auto spec = nibble::rpc::FromProto(message);
  ExpectClean(spec.status(), input);
  if (spec.ok()) FuzzSpec(*spec, input);
  return 0;
}
