// The constraint of a GenerateRequest.
#pragma once
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "nibble/v1/inference_service.pb.h"
#include "server/text/grammar.h"

namespace nibble::rpc {

struct Constraint {
  text::GrammarSource source;
  const char* field;  // of the GenerateRequest, for errors
};

// nullopt if the request has none. Errors: InvalidArgument (FIELD_VIOLATION): empty or too large. Does not compile it.
absl::StatusOr<std::optional<Constraint>> ConstraintOf(const v1::GenerateRequest& request);

}  // namespace nibble::rpc
