#include "server/model/adapter_targets.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/model/saved_modules.h"

namespace nibble::model {
namespace {

using base::StrCat;

absl::Status MatchesNothing(const std::string& field, const std::string& pattern, const char* what,
                            const ModelConfig& config) {
  return base::FieldError(field, StrCat("\"", pattern, "\" matches no ", what, ", wanted a match of a path such as ",
                                        ModulePath(config.num_layers - 1, LinearKind::kQ)));
}

// targets: the paths of the linears with an adapter.
template <typename Value>
absl::Status CheckPatterns(const std::string& field, const std::vector<std::pair<ModulePattern, Value>>& patterns,
                           const std::vector<std::string>& targets, const ModelConfig& config) {
  std::map<std::string, std::string> matched;  // target to pattern
  for (const auto& [pattern, value] : patterns) {
    bool matches = false;
    for (const std::string& path : targets) {
      if (!pattern.MatchesEnd(path)) continue;
      matches = true;
      const auto [first, is_new] = matched.emplace(path, pattern.text());
      if (is_new) continue;
      return base::FieldError(field, StrCat("\"", first->second, "\" and \"", pattern.text(), "\" both match ", path,
                                            ", wanted at most one pattern for a linear"));
    }
    if (!matches) return MatchesNothing(field, pattern.text(), "linear with an adapter", config);
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<LinearAdapter> AdapterOn(const AdapterConfig& adapter, const TensorSpec& spec) {
  if (spec.role != TensorRole::kLinear) return std::nullopt;
  return adapter.On(spec.name.substr(0, spec.name.rfind('.')));
}

absl::Status CheckAdapterTargets(std::string_view fields, const AdapterConfig& adapter, const ModelConfig& config) {
  std::vector<std::string> targets;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    for (int k = 0; k < kNumLinearKinds; ++k) {
      const std::string path = ModulePath(layer, static_cast<LinearKind>(k));
      if (adapter.On(path).has_value()) targets.push_back(path);
    }
  }
  if (adapter.target_pattern.has_value()) {
    const std::string field = StrCat(fields, ".target_pattern");
    const std::string& text = adapter.target_pattern->text();
    for (const std::string& other : OtherModules(config)) {
      if (!adapter.target_pattern->MatchesPath(other)) continue;
      return base::FieldError(
          field, StrCat("\"", text, "\" matches \"", other, "\", wanted only linears of the decoder, such as ",
                        ModulePath(0, LinearKind::kQ)));
    }
    if (targets.empty()) return MatchesNothing(field, text, "linear of the decoder", config);
  }
  NIBBLE_RETURN_IF_ERROR(CheckPatterns(StrCat(fields, ".rank_pattern"), adapter.rank_pattern, targets, config));
  return CheckPatterns(StrCat(fields, ".alpha_pattern"), adapter.alpha_pattern, targets, config);
}

}  // namespace nibble::model
