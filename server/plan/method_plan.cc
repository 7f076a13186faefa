#include "server/plan/method_plan.h"

#include "server/base/log.h"
#include "server/jobs/method_table.h"

namespace nibble::plan {
namespace {

jobs::MethodTable<MethodPlan>& Table() {
  static auto& table = *new jobs::MethodTable<MethodPlan>(
      {&QLoraPlan(), &BitNetQatPlan(), &FullPlan(), &Int8MixedPlan(), &Int8QtPlan(), &LoraPlan()});
  return table;
}

}  // namespace

std::vector<const MethodPlan*> MethodPlans() { return Table().All(); }

const MethodPlan& PlanOf(const jobs::JobSpec& spec) {
  const MethodPlan* found = Table().Find(spec.method);
  CHECK(found != nullptr);  // jobs::Validate accepts the same methods
  return *found;
}

void RegisterMethod(const MethodPlan& method) {
  jobs::RegisterMethod(method.method());
  Table().Add(method);
}

}  // namespace nibble::plan
