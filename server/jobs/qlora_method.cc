#include "server/base/strings.h"
#include "server/jobs/lora_method.h"
#include "server/jobs/method.h"
#include "server/jobs/spec_checker.h"

namespace nibble::jobs {
namespace {

class QLoraSpec : public Method {
 public:
  const char* name() const override { return kMethodQLora; }

  void Resolve(JobSpec& spec) const override { ResolveAdapter(spec.qlora); }
  absl::Status CheckImplemented(const JobSpec& spec) const override {
    if (spec.qlora.double_quant) return absl::OkStatus();
    return UnimplementedField("qlora.double_quant",
                              "false is not implemented yet: nf4 bases are always double quantized");
  }

  void Check(const JobSpec& spec, SpecChecker& check) const override {
    CheckAdapter("qlora", spec.qlora, check);
    if (spec.qlora.merge_aware_int8 && spec.qlora.dropout != 0.0) {
      check.Add("qlora.dropout", base::StrCat("is ", spec.qlora.dropout,
                                              ", wanted 0 with merge_aware_int8, which trains merged weights"));
    }
    if (spec.qlora.merge_aware_int8 && spec.qlora.use_dora) {
      check.Add("qlora.use_dora", "is true, wanted false with merge_aware_int8");
    }
  }

  bool MayDifferInStart(std::string_view field) const override {
    return field == "merge_aware_int8" || AdapterOptionMayDifferInStart(field);
  }
};

}  // namespace

const Method& QLora() {
  static const QLoraSpec method;
  return method;
}

}  // namespace nibble::jobs
