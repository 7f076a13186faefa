#include "server/jobs/method.h"
#include "server/jobs/spec_checker.h"

namespace nibble::jobs {
namespace {

class FullSpec : public Method {
 public:
  const char* name() const override { return kMethodFull; }

  void Check(const JobSpec& spec, SpecChecker& check) const override {
    check.WeightType("full.param_dtype", spec.full.param_dtype, spec.full.compute_dtype);
  }

  bool MayDifferInStart(std::string_view field) const override { return field == "compute_dtype" || field == "init"; }
};

}  // namespace

const Method& Full() {
  static const FullSpec method;
  return method;
}

}  // namespace nibble::jobs
