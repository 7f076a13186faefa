#include "server/jobs/int8_mixed_method.h"

#include <cstdint>

#include "server/base/strings.h"
#include "server/jobs/method.h"
#include "server/jobs/spec_checker.h"

namespace nibble::jobs {
namespace {

using base::StrCat;

constexpr std::int64_t kOutliers = 8;  // per row, as a conversion to int8 takes by default

// What a preset decides.
struct Preset {
  const char* name;
  bool grad_input;
  bool grad_weight;
  const char* weight_scale;
  std::int64_t act_outliers;
  bool exact_forward;
};
constexpr Preset kPresets[] = {
    {"all", true, true, "channel", kOutliers, true},
    {"a8w8-qat", false, false, "channel", kOutliers, true},
    {"switchback", true, false, "tensor", kOutliers, false},
    {"torchao", true, true, "channel", 0, false},
};

class Int8MixedSpec : public Method {
 public:
  const char* name() const override { return kMethodInt8Mixed; }

  void Resolve(JobSpec& spec) const override { spec.int8_mixed = WithPreset(spec.int8_mixed); }

  void Check(const JobSpec& spec, SpecChecker& check) const override {
    const Int8MixedMethod method = WithPreset(spec.int8_mixed);
    check.Modules("int8_mixed.target_modules", method.target_modules);
    if (!*method.forward && !*method.grad_input && !*method.grad_weight) {
      check.Add("int8_mixed.forward",
                "is false, and so are grad_input and grad_weight: wanted true in one of them, or method full");
    }
    if (*method.act_outliers > 0 && !*method.forward) {
      check.Add("int8_mixed.act_outliers", StrCat("is ", *method.act_outliers, ", wanted 0 with forward false"));
    } else if (*method.act_outliers > 0 && method.act_scale == "per_tensor") {
      check.Add("int8_mixed.act_outliers", StrCat("is ", *method.act_outliers, ", wanted 0 with act_scale PER_TENSOR"));
    }
    if (method.act_scale == "per_tensor" && !*method.forward) {
      check.Add("int8_mixed.act_scale", "is PER_TENSOR, wanted PER_TOKEN with forward false");
    }
    if (spec.int8_mixed.weight_scale.has_value() && !*method.forward && !*method.grad_input) {
      check.Add("int8_mixed.weight_scale", "is given, wanted no weight_scale with forward and grad_input false");
    }
    if (method.grad_scale == "per_tensor" && !*method.grad_input && !*method.grad_weight) {
      check.Add("int8_mixed.grad_scale", "is PER_TENSOR, wanted PER_TOKEN with grad_input and grad_weight false");
    }
    if (method.stochastic_forward && !*method.forward) {
      check.Add("int8_mixed.stochastic_forward", "is true, wanted false with forward false");
    }
    if (method.stochastic_gradients && !*method.grad_input && !*method.grad_weight) {
      check.Add("int8_mixed.stochastic_gradients", "is true, wanted false with grad_input and grad_weight false");
    }
    check.WeightType("int8_mixed.master_dtype", method.master_dtype, method.compute_dtype);
    if (const Exclusion found = ExcludesExactForward(method); *method.exact_forward && found.field != nullptr) {
      check.Add("int8_mixed.exact_forward", StrCat("is true, wanted false, or ", found.field, " ", found.wanted));
    }
  }

  // The parameters are the same weights for every choice of products.
  bool MayDifferInStart(std::string_view field) const override { return field != "master_dtype"; }
};

}  // namespace

Exclusion ExcludesExactForward(const Int8MixedMethod& method) {
  if (!*method.forward) return {"forward", "true"};
  if (method.stochastic_forward) return {"stochastic_forward", "false"};
  if (method.act_scale != "per_token") return {"act_scale", "PER_TOKEN"};
  if (*method.weight_scale != "channel") return {"weight_scale", "CHANNEL"};
  if (method.target_modules.size() < Int8MixedMethod().target_modules.size()) {
    return {"target_modules", "with all seven"};
  }
  return {};
}

Int8MixedMethod WithPreset(Int8MixedMethod method) {
  const Preset* preset = &kPresets[0];  // of an unknown name, which the check of the field refuses
  for (const Preset& known : kPresets) {
    if (method.preset == known.name) preset = &known;
  }
  if (!method.forward.has_value()) method.forward = true;
  if (!method.grad_input.has_value()) method.grad_input = preset->grad_input;
  if (!method.grad_weight.has_value()) method.grad_weight = preset->grad_weight;
  if (!method.weight_scale.has_value()) method.weight_scale = preset->weight_scale;
  if (!method.act_outliers.has_value()) {
    method.act_outliers = *method.forward && method.act_scale == "per_token" ? preset->act_outliers : 0;
  }
  if (!method.exact_forward.has_value()) {
    method.exact_forward = preset->exact_forward && ExcludesExactForward(method).field == nullptr;
  }
  return method;
}

std::optional<int> TrainedOutliers(const Int8MixedMethod& method) {
  const Int8MixedMethod set = WithPreset(method);
  return *set.forward ? std::optional<int>(static_cast<int>(*set.act_outliers)) : std::nullopt;
}

const Method& Int8Mixed() {
  static const Int8MixedSpec method;
  return method;
}

}  // namespace nibble::jobs
