// F6: a job spec, as JSON (attempt.json, the client's --spec) where the input begins with "{", else as the bytes of a
// nibble.v1.JobSpec. What is valid resolves, and says the same after being written and read in either form.
#include <cmath>
#include <string>

#include "server/base/json.h"
#include "server/jobs/job_spec.h"
#include "server/rpc/job_proto.h"
#include "server/rpc/status.h"
#include "tests/fuzz/fuzz.h"

using nibble::fuzz::Expect;
namespace jobs = nibble::jobs;

namespace {

void FuzzSpec(const jobs::JobSpec& spec) {
  const absl::Status valid = jobs::Validate(spec);
  Expect(valid.ok() == (jobs::FindViolations(spec).empty() && valid.code() != absl::StatusCode::kUnimplemented),
         "a spec is valid when nothing is wrong with it");
  if (!valid.ok()) {
    Expect(!nibble::rpc::ToGrpcStatus(valid).error_message().empty(), "a refusal says why");
    return;
  }
  Expect(std::isfinite(spec.optim.lr) && std::isfinite(spec.qlora.alpha) && spec.qlora.r > 0 && spec.run.micro_batch > 0 &&
             spec.data.max_seq_len > 0,
         "valid numbers can be computed with");
  const jobs::JobSpec resolved = jobs::Resolve(spec, "job-1", "text", "cpu");
  const auto again = jobs::ParseJobSpec(jobs::ToJson(resolved));
  Expect(again.ok() && jobs::ToJson(*again) == jobs::ToJson(resolved), "written as JSON it reads the same");
  Expect(nibble::rpc::FromProto(nibble::rpc::ToProto(resolved)).ok(), "shown as a message it can be sent again");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 0 && data[0] == '{') {
    const auto json = nibble::base::ParseJson(nibble::fuzz::Text(data, size));
    if (!json.ok()) return 0;
    if (const auto spec = jobs::ParseJobSpec(*json); spec.ok()) FuzzSpec(*spec);
    return 0;
  }
  nibble::v1::JobSpec message;
  if (size > std::size_t{1} << 20 || !message.ParseFromArray(data, static_cast<int>(size))) return 0;
  if (const auto spec = nibble::rpc::FromProto(message); spec.ok()) FuzzSpec(*spec);
  return 0;
}
