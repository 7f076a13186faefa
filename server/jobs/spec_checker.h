// Collects what is wrong with a job spec. Included by the checks of specs and of their bases only.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/base/error.h"
#include "server/base/ids.h"
#include "server/base/strings.h"
#include "server/jobs/job_spec.h"

namespace nibble::jobs {

class SpecChecker {
 public:
  void Add(std::string field, std::string message) { found_.push_back({std::move(field), std::move(message)}); }

  void Name(std::string_view field, const std::string& name) {
    const absl::Status status = base::CheckName(field, name);
    if (status.ok()) return;
    // CheckName's message begins with "FIELD: ", which is cut off here.
    Add(std::string(field), std::string(status.message()).substr(field.size() + 2));
  }
  void Int(std::string field, std::int64_t value, std::int64_t low,
           std::int64_t high = std::numeric_limits<std::int64_t>::max()) {
    if (value >= low && value <= high) return;
    if (high == std::numeric_limits<std::int64_t>::max()) {
      Add(std::move(field), base::StrCat("is ", value, ", wanted at least ", low));
    } else {
      Add(std::move(field), base::StrCat("is ", value, ", wanted ", low, " to ", high));
    }
  }
  // `good`: whether a finite value is allowed. NaN and infinities always fail.
  void Number(std::string field, double value, bool good, std::string_view wanted) {
    if (std::isfinite(value) && good) return;
    Add(std::move(field), base::StrCat("is ", value, ", wanted ", wanted));
  }
  void OneOf(std::string field, const std::string& value, std::span<const char* const> choices) {
    if (std::find(choices.begin(), choices.end(), value) != choices.end()) return;
    std::string list;
    for (const std::string_view choice : choices) list = base::StrCat(list, list.empty() ? "" : ", ", choice);
    Add(std::move(field), base::StrCat("is \"", value.substr(0, 64), "\", wanted one of ", list));
  }
  // Names of a decoder's linears. `other`: a further permitted name, or "".
  void Modules(const std::string& field, const std::vector<std::string>& modules, const std::string& other = "") {
    if (modules.empty()) Add(field, "is empty, wanted at least one");
    std::vector<std::string> known = LoraMethod().target_modules;
    if (!other.empty()) known.push_back(other);
    std::set<std::string> seen;
    for (const std::string& module : modules) {
      if (std::find(known.begin(), known.end(), module) == known.end()) {
        std::string list;
        for (const std::string& name : known) list = base::StrCat(list, list.empty() ? "" : ", ", name);
        Add(field, base::StrCat("has \"", module.substr(0, 64), "\", wanted some of ", list));
      } else if (!seen.insert(module).second) {
        Add(field, base::StrCat("has \"", module, "\" twice"));
      }
    }
  }
  // Products in f32 do not read weights in bf16.
  void WeightType(std::string field, const std::string& dtype, const std::string& compute_dtype) {
    if (dtype != "bf16" || compute_dtype == "bf16") return;
    Add(std::move(field), "is BF16, wanted F32 with compute_dtype F32, or compute_dtype BF16");
  }
  std::vector<FieldViolation> Take() { return std::move(found_); }

 private:
  std::vector<FieldViolation> found_;
};

// Error for a value of a field that is planned but not implemented.
inline absl::Status UnimplementedField(const char* field, std::string_view what) {
  return base::WithReason(absl::UnimplementedError(base::StrCat(field, ": ", what)), "UNIMPLEMENTED",
                          {{"field", field}});
}

}  // namespace nibble::jobs
