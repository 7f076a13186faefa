#include "server/jobs/lora_method.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/jobs/method.h"
#include "server/jobs/spec_checker.h"

namespace nibble::jobs {
namespace {

using base::StrCat;

class LoraSpec : public Method {
 public:
  const char* name() const override { return kMethodLora; }

  void Resolve(JobSpec& spec) const override { ResolveAdapter(spec.lora); }
  void Check(const JobSpec& spec, SpecChecker& check) const override { CheckAdapter("lora", spec.lora, check); }

  bool MayDifferInStart(std::string_view field) const override { return AdapterOptionMayDifferInStart(field); }
};

bool IsAlpha(double alpha) { return alpha > 0.0 && alpha <= model::kMaxLoraAlpha; }
constexpr char kAlphaWanted[] = "above 0, at most 1e+06";

void CheckPattern(const std::string& field, const std::string& text, SpecChecker& check) {
  const auto pattern = model::ModulePattern::Create(text);
  if (!pattern.ok()) check.Add(field, std::string(pattern.status().message()));
}

template <typename Value, typename CheckValue>
void CheckPatterns(const std::string& field, const std::map<std::string, Value>& patterns, SpecChecker& check,
                   CheckValue check_value) {
  if (patterns.size() > model::kMaxPatterns) {
    check.Add(field, StrCat("has ", patterns.size(), " entries, wanted at most ", model::kMaxPatterns));
    return;
  }
  for (const auto& [text, value] : patterns) {
    CheckPattern(field, text, check);
    check_value(value);
  }
}

// Checks the list alone; model::SavedModulesProblem compares the entries with the modules of the base.
void CheckModulesToSave(const std::string& field, const std::vector<std::string>& modules, SpecChecker& check) {
  if (modules.size() > model::kMaxPatterns) {
    check.Add(field, StrCat("has ", modules.size(), " entries, wanted at most ", model::kMaxPatterns));
  }
  std::set<std::string> seen;
  for (const std::string& module : modules) {
    if (module.empty() || module.size() > model::kMaxPatternBytes) {
      check.Add(field, StrCat("has a text of ", module.size(), " bytes, wanted 1 to ", model::kMaxPatternBytes));
    } else if (!seen.insert(module).second) {
      check.Add(field, StrCat("has \"", module, "\" twice"));
    }
  }
}

template <typename Value>
absl::StatusOr<std::vector<std::pair<model::ModulePattern, Value>>> PatternsOf(
    const std::map<std::string, Value>& texts) {
  std::vector<std::pair<model::ModulePattern, Value>> patterns;
  for (const auto& [text, value] : texts) {
    NIBBLE_ASSIGN_OR_RETURN(model::ModulePattern pattern, model::ModulePattern::Create(text));
    patterns.emplace_back(std::move(pattern), value);
  }
  return patterns;
}

}  // namespace

const Method& Lora() {
  static const LoraSpec method;
  return method;
}

void CheckAdapter(std::string_view method, const LoraMethod& lora, SpecChecker& check) {
  const auto field = [&](const char* name) { return StrCat(method, ".", name); };
  check.Number(field("alpha"), lora.alpha, IsAlpha(lora.alpha), kAlphaWanted);
  check.Number(field("dropout"), lora.dropout, lora.dropout >= 0.0 && lora.dropout < 1.0, "0 <= dropout < 1");
  check.Number(field("lora_plus_ratio"), lora.lora_plus_ratio,
               lora.lora_plus_ratio >= 1.0 && lora.lora_plus_ratio <= 1000.0, "1 to 1000");
  if (lora.use_dora && lora.dropout != 0.0) {
    check.Add(field("dropout"), StrCat("is ", lora.dropout, ", wanted 0 with use_dora"));
  }
  if (lora.target_pattern.empty()) {
    check.Modules(field("target_modules"), lora.target_modules);
  } else {
    CheckPattern(field("target_pattern"), lora.target_pattern, check);
    if (!lora.target_modules.empty() && lora.target_modules != LoraMethod().target_modules) {
      check.Add(field("target_pattern"), "is given together with target_modules, wanted at most one of the two");
    }
  }
  const std::string ranks = field("rank_pattern"), alphas = field("alpha_pattern");
  CheckPatterns(ranks, lora.rank_pattern, check,
                [&](std::int64_t rank) { check.Int(ranks, rank, 1, model::kMaxLoraRank); });
  CheckPatterns(alphas, lora.alpha_pattern, check,
                [&](double alpha) { check.Number(alphas, alpha, IsAlpha(alpha), kAlphaWanted); });
  CheckModulesToSave(field("modules_to_save"), lora.modules_to_save, check);
}

bool AdapterOptionMayDifferInStart(std::string_view field) {
  return field == "dropout" || field == "compute_dtype" || field == "seed" || field == "lora_plus_ratio";
}

void ResolveAdapter(LoraMethod& lora) {
  if (!lora.target_pattern.empty()) lora.target_modules.clear();
}

absl::StatusOr<model::AdapterConfig> AdapterOf(const LoraMethod& lora) {
  model::AdapterConfig adapter;
  adapter.rank = lora.r;
  adapter.alpha = lora.alpha;
  adapter.dropout = lora.dropout;
  adapter.rslora = lora.use_rslora;
  adapter.dora = lora.use_dora;
  if (!lora.target_pattern.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(adapter.target_pattern, model::ModulePattern::Create(lora.target_pattern));
  }
  for (int k = 0; k < model::kNumLinearKinds; ++k) {
    const auto kind = static_cast<model::LinearKind>(k);
    for (const std::string& name : lora.target_modules) {
      if (name == model::ShortName(kind) && lora.target_pattern.empty()) adapter.targets.push_back(kind);
    }
  }
  NIBBLE_ASSIGN_OR_RETURN(adapter.rank_pattern, PatternsOf(lora.rank_pattern));
  NIBBLE_ASSIGN_OR_RETURN(adapter.alpha_pattern, PatternsOf(lora.alpha_pattern));
  adapter.modules_to_save = lora.modules_to_save;
  return adapter;
}

}  // namespace nibble::jobs
