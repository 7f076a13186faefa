#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "server/base/strings.h"
#include "server/jobs/method.h"
#include "server/jobs/spec_checker.h"

namespace nibble::jobs {
namespace {

using base::StrCat;

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
    if (qlora.target_modules.empty()) check.Add("qlora.target_modules", "is empty, wanted at least one");
    const std::vector<std::string> known = QLoraMethod().target_modules;
    std::set<std::string> seen;
    for (const std::string& module : qlora.target_modules) {
      if (std::find(known.begin(), known.end(), module) == known.end()) {
        std::string list;
        for (const std::string& name : known) list = StrCat(list, list.empty() ? "" : ", ", name);
        check.Add("qlora.target_modules", StrCat("has \"", module.substr(0, 64), "\", wanted some of ", list));
      } else if (!seen.insert(module).second) {
        check.Add("qlora.target_modules", StrCat("has \"", module, "\" twice"));
      }
    }
  }
};

}  // namespace

const Method& QLora() {
  static const QLoraSpec method;
  return method;
}

}  // namespace nibble::jobs
