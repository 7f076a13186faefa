// A line of the file of --token_file; "token-NAME" is NAME's token.
#pragma once
#include <string>

#include "server/base/sha256.h"
#include "server/base/strings.h"

namespace nibble::testing_support {

// `more`: further members of the object, such as `, "tenant": "red"`.
inline std::string TokenLine(const std::string& name, const std::string& role, const std::string& more = "") {
  return base::StrCat(R"({"name": ")", name, R"(", "role": ")", role, R"(", "token_sha256": ")",
                      base::Sha256Hex("token-" + name), "\"", more, "}\n");
}

}  // namespace nibble::testing_support
