#include "server/base/ids.h"

#include <sys/random.h>

#include "absl/strings/ascii.h"
#include "server/base/strings.h"
#include "server/base/error.h"
#include "server/base/log.h"

namespace nibble::base {

absl::Status CheckName(std::string_view field, std::string_view name) {
  const auto refuse = [&](std::string_view why) { return FieldError(field, StrCat("the name ", why)); };
  if (name.empty()) return refuse("is empty");
  if (name.size() > 63) return refuse(StrCat("has ", name.size(), " characters, wanted at most 63"));
  for (const char c : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_' && c != '.') {
      return refuse("may hold only letters, digits, '-', '_' and '.'");
    }
  }
  if (!absl::ascii_isalnum(static_cast<unsigned char>(name.front())) ||
      !absl::ascii_isalnum(static_cast<unsigned char>(name.back()))) {
    return refuse("must begin and end with a letter or digit");
  }
  if (name.find("..") != std::string_view::npos) return refuse("may not hold \"..\"");
  return absl::OkStatus();
}

std::string NewId(std::string_view prefix) {
  unsigned char bytes[16];
  CHECK(::getrandom(bytes, sizeof bytes, 0) == static_cast<ssize_t>(sizeof bytes));
  std::string id = StrCat(prefix, "-");
  for (const unsigned char byte : bytes) id.push_back("0123456789abcdefghijklmnopqrstuv"[byte % 32]);
  return id;
}

}  // namespace nibble::base
