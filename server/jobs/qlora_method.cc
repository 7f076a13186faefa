#include "server/jobs/method.h"
#include "server/jobs/spec_checker.h"

namespace nibble::jobs {
namespace {

class QLoraSpec : public Method {
 public:
  const char* name() const override { return kMethodQLora; }

  absl::Status CheckImplemented(const JobSpec& spec) const override {
    if (spec.qlora.double_quant) return absl::OkStatus();
    return UnimplementedField("qlora.double_quant",
                              "false is not implemented yet: nf4 bases are always double quantized");
  }

  void Check(const JobSpec& spec, SpecChecker& check) const override {
    const QLoraMethod& qlora = spec.qlora;
    check.Number("qlora.alpha", qlora.alpha, qlora.alpha > 0.0 && qlora.alpha <= 1e6, "above 0, at most 1e+06");
    check.Number("qlora.dropout", qlora.dropout, qlora.dropout >= 0.0 && qlora.dropout < 1.0, "0 <= dropout < 1");
    check.Number("qlora.lora_plus_ratio", qlora.lora_plus_ratio,
                 qlora.lora_plus_ratio >= 1.0 && qlora.lora_plus_ratio <= 1000.0, "1 to 1000");
    check.Modules("qlora.target_modules", qlora.target_modules);
  }
};

}  // namespace

const Method& QLora() {
  static const QLoraSpec method;
  return method;
}

}  // namespace nibble::jobs
