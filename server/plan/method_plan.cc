#include "server/plan/method_plan.h"

#include "server/base/log.h"

namespace nibble::plan {

const MethodPlan& PlanOf(const jobs::JobSpec& spec) {
  const MethodPlan* found = nullptr;
  for (const MethodPlan* method : {&QLoraPlan(), &BitNetQatPlan()}) {
    if (spec.method == method->name()) found = method;
  }
  CHECK(found != nullptr);  // jobs::Validate accepts the same methods
  return *found;
}

}  // namespace nibble::plan
