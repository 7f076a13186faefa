// Which role may call which method: the one table, by full path. What is not in it is refused.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace nibble::rpc {

// Each may do what those before it may.
enum class Role {
  kViewer,  // look at jobs, models, datasets' names and the server
  kInfer,   // generate and score
  kTrain,   // bring data and models in, run jobs, take results out, delete them
  kOperator,  // go before others: priorities above 0
  kAdmin,   // change the server
};
const char* Name(Role role);
std::optional<Role> ParseRole(std::string_view name);

enum class Access {
  kRole,        // a principal of MethodRule::role or above
  kHealth,      // as kRole, or anybody where the operator said so
  kReflection,  // likewise
  kTrainer,     // the trainers' own listener, and nowhere else
};

struct MethodRule {
  std::string_view method;  // "nibble.v1.ModelService/GetModel"
  Access access;
  Role role;
};
std::span<const MethodRule> MethodRules();
// nullptr: no such method is allowed to anybody. `path` with or without its leading slash.
const MethodRule* FindRule(std::string_view path);

}  // namespace nibble::rpc
