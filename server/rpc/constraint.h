// The constraint of a GenerateRequest.
#pragma once
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "nibble/v1/inference_service.pb.h"
#include "server/model/text_assets.h"
#include "server/text/grammar.h"

namespace nibble::rpc {

struct Constraint {
  text::GrammarSource source;
  const char* field;  // of the GenerateRequest, for errors
};

// nullopt if the request has none, or if its schema is a part of ToolConstraint. Errors: InvalidArgument
// (FIELD_VIOLATION): empty, too large, or not allowed beside tools. Does not compile it.
absl::StatusOr<std::optional<Constraint>> ConstraintOf(const v1::GenerateRequest& request);

// The constraint of a request whose answer must call a tool, or may call one and is otherwise JSON or has a strict
// tool: calls in the form of the model, and other text. nullopt for other requests, and for a model that does not
// support tools. Requires CheckTools and CheckToolChoice.
std::optional<Constraint> ToolConstraint(const v1::GenerateRequest& request, const model::TextAssets& assets);

}  // namespace nibble::rpc
