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

  void Check(const JobSpec& spec, SpecChecker& check) const override { check.Adapter("qlora", spec.qlora); }
};

}  // namespace

const Method& QLora() {
  static const QLoraSpec method;
  return method;
}

}  // namespace nibble::jobs
