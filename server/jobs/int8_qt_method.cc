#include "server/base/strings.h"
#include "server/jobs/method.h"
#include "server/jobs/spec_checker.h"

namespace nibble::jobs {
namespace {

class Int8QtSpec : public Method {
 public:
  const char* name() const override { return kMethodInt8Qt; }

  void Check(const JobSpec& spec, SpecChecker& check) const override {
    const Int8QtMethod& method = spec.int8_qt;
    if (method.compute == "float" && method.act_outliers > 0) {
      check.Add("int8_qt.act_outliers", base::StrCat("is ", method.act_outliers, ", wanted 0 with compute FLOAT"));
    }
  }

  bool MayDifferInStart(std::string_view field) const override {
    return field == "stochastic_rounding" || field == "act_outliers" || field == "init" || field == "compute_dtype";
  }
};

}  // namespace

const Method& Int8Qt() {
  static const Int8QtSpec method;
  return method;
}

}  // namespace nibble::jobs
