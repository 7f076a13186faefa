#include "server/jobs/method.h"

#include "server/base/strings.h"
#include "server/jobs/method_table.h"

namespace nibble::jobs {
namespace {

MethodTable<Method>& Table() {
  static auto& table = *new MethodTable<Method>({&QLora(), &BitNetQat(), &Full(), &Int8Mixed(), &Int8Qt(), &Lora()});
  return table;
}

}  // namespace

std::vector<const Method*> Methods() { return Table().All(); }
const Method* FindMethod(std::string_view name) { return Table().Find(name); }
void RegisterMethod(const Method& method) { Table().Add(method); }

std::string MethodChoices() {
  const std::vector<const Method*> methods = Methods();
  std::string text;
  for (std::size_t i = 0; i < methods.size(); ++i) {
    const char* before = i == 0 ? "" : i + 1 == methods.size() ? " or " : ", ";
    text = base::StrCat(text, before, methods[i]->name());
  }
  return text;
}

}  // namespace nibble::jobs
