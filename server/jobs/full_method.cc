#include "server/jobs/method.h"
#include "server/jobs/spec_checker.h"

namespace nibble::jobs {
namespace {

class FullSpec : public Method {
 public:
  const char* name() const override { return kMethodFull; }

  void Check(const JobSpec& spec, SpecChecker& check) const override {
    if (spec.full.param_dtype == "bf16" && spec.full.compute_dtype != "bf16") {
      check.Add("full.param_dtype", "is BF16, wanted F32 with compute_dtype F32, or compute_dtype BF16");
    }
  }

  bool MayDifferInStart(std::string_view field) const override { return field == "compute_dtype" || field == "init"; }
};

}  // namespace

const Method& Full() {
  static const FullSpec method;
  return method;
}

}  // namespace nibble::jobs
