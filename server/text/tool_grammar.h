// Constrains an answer to calls of tools.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/base/json.h"
#include "server/text/tool_format.h"

namespace nibble::text {

struct ToolSchema {
  std::string name;
  base::Json parameters = base::Json::object();  // a JSON schema of an object
};

struct ToolGrammarOptions {
  ToolFormat format = ToolFormat::kHermes;
  std::vector<ToolSchema> tools;  // those that may be called, at least one
  bool required = false;          // the answer is calls only; otherwise it may be, or may also contain, other text
  std::optional<base::Json> content =
      std::nullopt;      // a JSON schema that an answer without calls matches; ignored if `required`
  bool parallel = true;  // more than one call; ignored for kLlama3, whose templates render one call per answer
  // The id of a marker that is a special token of the vocabulary; nullopt: the marker is text.
  std::function<std::optional<std::int32_t>(std::string_view)> token_id;
};

// A grammar in llguidance's dialect of Lark (docs/syntax.md of its repository). A special token is <[id]> there. The
// name of a tool is before its arguments, as in the chat templates; the arguments are `%json` with the tool's own
// schema, so that references in it stay right.
std::string ToolGrammar(const ToolGrammarOptions& options);

}  // namespace nibble::text
