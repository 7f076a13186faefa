#include "server/rpc/constraint.h"

#include <string>
#include <utility>

#include "server/base/error.h"
#include "server/base/json.h"
#include "server/base/strings.h"

namespace nibble::rpc {

namespace {

using base::FieldError;
using base::StrCat;
using text::GrammarKind;

std::optional<Constraint> Unchecked(const v1::GenerateRequest& request) {
  switch (request.constraint_case()) {
    case v1::GenerateRequest::kJsonSchema:
      return Constraint{{GrammarKind::kJsonSchema, request.json_schema()}, "json_schema"};
    case v1::GenerateRequest::kRegex: return Constraint{{GrammarKind::kRegex, request.regex()}, "regex"};
    case v1::GenerateRequest::kLark: return Constraint{{GrammarKind::kLark, request.lark()}, "lark"};
    case v1::GenerateRequest::kChoice: {
      base::Json choices = base::Json::array();
      for (const std::string& choice : request.choice().choices()) choices.push_back(choice);
      return Constraint{{GrammarKind::kChoice, choices.dump()}, "choice"};
    }
    case v1::GenerateRequest::CONSTRAINT_NOT_SET: return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<std::optional<Constraint>> ConstraintOf(const v1::GenerateRequest& request) {
  constexpr std::size_t kMaxBytes = text::GrammarSource::kMaxBytes;
  // The size of all choices, before they are copied.
  if (request.has_choice() && request.choice().ByteSizeLong() > kMaxBytes) {
    return FieldError("choice", StrCat("has ", request.choice().ByteSizeLong(), " bytes, wanted at most ", kMaxBytes));
  }
  std::optional<Constraint> constraint = Unchecked(request);
  if (!constraint.has_value()) return constraint;
  const std::string& source = constraint->source.text;
  if (source.empty()) return FieldError(constraint->field, "is empty");
  if (source.size() > kMaxBytes)
    return FieldError(constraint->field, StrCat("has ", source.size(), " bytes, wanted at most ", kMaxBytes));
  return constraint;
}

}  // namespace nibble::rpc
