#include <algorithm>
#include <string>
#include <vector>

#include "server/base/strings.h"
#include "server/jobs/method.h"
#include "server/jobs/spec_checker.h"

namespace nibble::jobs {
namespace {

void CheckRamp(const LambdaSchedule& ramp, SpecChecker& check) {
  check.Number("bitnet_qat.warmup_lambda.from", ramp.from, ramp.from >= 0.0 && ramp.from <= 1.0, "0 to 1");
  check.Number("bitnet_qat.warmup_lambda.to", ramp.to, ramp.to == 1.0,
               "1, because the served model is quantized completely");
  if (ramp.steps == 0 && ramp.from > 0.0) {
    check.Add("bitnet_qat.warmup_lambda.steps", "is 0, wanted at least 1 if warmup_lambda.from is above 0");
  }
}

void CheckNotConverted(const std::vector<std::string>& modules, SpecChecker& check) {
  constexpr char kField[] = "bitnet_qat.modules_to_not_convert";
  check.Modules(kField, modules, "lm_head");
  const auto is_named = [&](const std::string& linear) {
    return std::find(modules.begin(), modules.end(), linear) != modules.end();
  };
  const std::vector<std::string> linears = LoraMethod().target_modules;
  if (std::all_of(linears.begin(), linears.end(), is_named)) {
    check.Add(kField, "has all linears, so none would be ternary: wanted fewer, or method full");
  }
}

class BitNetQatSpec : public Method {
 public:
  const char* name() const override { return kMethodBitNetQat; }

  void Check(const JobSpec& spec, SpecChecker& check) const override {
    const BitNetQatMethod& bitnet = spec.bitnet_qat;
    if (bitnet.act_bits != 4 && bitnet.act_bits != 8 && bitnet.act_bits != 16) {
      check.Add("bitnet_qat.act_bits", base::StrCat("is ", bitnet.act_bits, ", wanted 4, 8 or 16"));
    }
    if (bitnet.scale_grad && bitnet.ste == "identity") {
      check.Add("bitnet_qat.scale_grad", "is true, which ste identity does not use: wanted ste round_only or clipped");
    }
    if (bitnet.warmup_lambda.has_value()) CheckRamp(*bitnet.warmup_lambda, check);
    CheckNotConverted(bitnet.modules_to_not_convert, check);
  }

  void CheckSteps(const JobSpec& spec, std::int64_t steps, SpecChecker& check) const override {
    if (!spec.bitnet_qat.has_ramp() || spec.bitnet_qat.warmup_lambda->steps < steps) return;
    check.Add("bitnet_qat.warmup_lambda.steps",
              base::StrCat("is ", spec.bitnet_qat.warmup_lambda->steps, ", and the run has ", steps,
                           steps == 1 ? " step" : " steps",
                           ": wanted fewer, so that the run ends with quantized steps, or a longer run"));
  }

  bool MayDifferInStart(std::string_view field) const override {
    return field == "act_scale" || field == "act_bits" || field == "ste" || field == "scale_grad" || field == "init" ||
           field == "compute_dtype" || field == "warmup_lambda" || field == "modules_to_not_convert";
  }
};

}  // namespace

const Method& BitNetQat() {
  static const BitNetQatSpec method;
  return method;
}

}  // namespace nibble::jobs
