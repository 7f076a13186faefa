#include "server/jobs/method.h"

#include "server/base/log.h"
#include "server/base/mutex.h"
#include "server/base/strings.h"

namespace nibble::jobs {
namespace {

struct Table {
  base::Mutex mutex;
  std::vector<const Method*> methods ABSL_GUARDED_BY(mutex) = {&QLora(), &BitNetQat()};
};

Table& TheTable() {
  static Table& table = *new Table;
  return table;
}

}  // namespace

std::vector<const Method*> Methods() {
  Table& table = TheTable();
  base::MutexLock lock(table.mutex);
  return table.methods;
}

const Method* FindMethod(std::string_view name) {
  Table& table = TheTable();
  base::MutexLock lock(table.mutex);
  for (const Method* method : table.methods) {
    if (name == method->name()) return method;
  }
  return nullptr;
}

std::string MethodChoices() {
  const std::vector<const Method*> methods = Methods();
  std::string text;
  for (std::size_t i = 0; i < methods.size(); ++i) {
    const char* before = i == 0 ? "" : i + 1 == methods.size() ? " or " : ", ";
    text = base::StrCat(text, before, methods[i]->name());
  }
  return text;
}

void RegisterMethod(const Method& method) {
  CHECK(FindMethod(method.name()) == nullptr);
  Table& table = TheTable();
  base::MutexLock lock(table.mutex);
  table.methods.push_back(&method);
}

}  // namespace nibble::jobs
