// Table of the roles that may call each method, by full path. With a token file, methods that are not in the table
// are refused.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace nibble::auth {

// Each role includes the rights of the roles before it.
enum class Role {
  kViewer,    // read jobs, models, operations, names and sizes of datasets, and the server's state
  kInfer,     // generate, score, tokenize and verify
  kTrain,     // upload data and models, run jobs, download and delete results
  kOperator,  // set priorities above 0
  kAdmin,     // change the server
};
const char* Name(Role role);
std::optional<Role> ParseRole(std::string_view name);

enum class Access {
  kRole,        // a principal of MethodRule::role or above
  kHealth,      // as kRole, or without a token if AuthPolicy::health_without_token
  kReflection,  // as kRole, or without a token if AuthPolicy::reflection_without_token
  kTrainer,     // on the trainers' listener only
};

struct MethodRule {
  std::string_view method;  // "nibble.v1.ModelService/GetModel"
  Access access;
  Role role;
};
std::span<const MethodRule> MethodRules();
// nullptr: unknown method. `path` may have a leading slash.
const MethodRule* FindRule(std::string_view path);

}  // namespace nibble::auth
