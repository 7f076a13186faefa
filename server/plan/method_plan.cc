#include "server/plan/method_plan.h"

#include "server/base/log.h"
#include "server/base/mutex.h"

namespace nibble::plan {
namespace {

struct Table {
  base::Mutex mutex;
  std::vector<const MethodPlan*> methods ABSL_GUARDED_BY(mutex) = {&QLoraPlan(), &BitNetQatPlan()};
};

Table& TheTable() {
  static Table& table = *new Table;
  return table;
}

}  // namespace

std::vector<const MethodPlan*> MethodPlans() {
  Table& table = TheTable();
  base::MutexLock lock(table.mutex);
  return table.methods;
}

const MethodPlan& PlanOf(const jobs::JobSpec& spec) {
  const MethodPlan* found = nullptr;
  Table& table = TheTable();
  base::MutexLock lock(table.mutex);
  for (const MethodPlan* method : table.methods) {
    if (spec.method == method->name()) found = method;
  }
  CHECK(found != nullptr);  // jobs::Validate accepts the same methods
  return *found;
}

void RegisterMethod(const MethodPlan& method) {
  jobs::RegisterMethod(method.method());  // checks that the name is new
  Table& table = TheTable();
  base::MutexLock lock(table.mutex);
  table.methods.push_back(&method);
}

}  // namespace nibble::plan
