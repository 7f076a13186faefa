#include "server/base/ids.h"

#include <sys/random.h>

#include "absl/strings/ascii.h"
#include "server/base/error.h"
#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::base {

namespace {

constexpr std::string_view kIdDigits = "0123456789abcdefghijklmnopqrstuv";
constexpr std::size_t kIdLength = 16;
constexpr std::string_view kTemporaryMark = ".tmp.w-";

std::string RandomDigits() {
  unsigned char bytes[kIdLength];
  CHECK(::getrandom(bytes, sizeof bytes, 0) == static_cast<ssize_t>(sizeof bytes));
  std::string digits;
  for (const unsigned char byte : bytes) digits.push_back(kIdDigits[byte % kIdDigits.size()]);
  return digits;
}

}  // namespace

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
  if (IsTemporaryName(name)) return refuse("ends like the server's own names for unfinished work, which it removes");
  return absl::OkStatus();
}

absl::Status CheckPrincipalName(std::string_view field, std::string_view name) {
  NIBBLE_RETURN_IF_ERROR(CheckName(field, name));
  if (name != kUnnamedCaller) return absl::OkStatus();
  return FieldError(field, StrCat("the name ", name, " is reserved for callers of a server without a token file"));
}

absl::Status CheckRequestId(std::string_view id) {
  if (id.size() <= 256) return absl::OkStatus();
  return FieldError("request_id", StrCat("has ", id.size(), " bytes, wanted at most 256"));
}

std::string NewId(std::string_view prefix) { return StrCat(prefix, "-", RandomDigits()); }

std::string TemporaryName(std::string_view name) { return StrCat(name, kTemporaryMark, RandomDigits()); }

bool IsTemporaryName(std::string_view name) {
  if (name.size() < kTemporaryMark.size() + kIdLength) return false;
  const std::string_view id = name.substr(name.size() - kIdLength);
  name.remove_suffix(kIdLength);
  return name.substr(name.size() - kTemporaryMark.size()) == kTemporaryMark &&
         id.find_first_not_of(kIdDigits) == std::string_view::npos;
}

}  // namespace nibble::base
