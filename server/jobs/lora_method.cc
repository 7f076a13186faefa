#include "server/jobs/method.h"
#include "server/jobs/spec_checker.h"

namespace nibble::jobs {
namespace {

class LoraSpec : public Method {
 public:
  const char* name() const override { return kMethodLora; }

  void Check(const JobSpec& spec, SpecChecker& check) const override { check.Adapter("lora", spec.lora); }
};

}  // namespace

const Method& Lora() {
  static const LoraSpec method;
  return method;
}

}  // namespace nibble::jobs
