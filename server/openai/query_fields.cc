#include "server/openai/query_fields.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "server/base/error.h"
#include "server/base/nearest.h"
#include "server/base/strings.h"
#include "server/base/utf8.h"

namespace nibble::openai {

using base::StrCat;

namespace {

// Decodes %XX and "+"; a malformed escape stays as it is.
std::string Decoded(std::string_view text) {
  const auto is_digit = [&](std::size_t i) {
    return i < text.size() && absl::ascii_isxdigit(static_cast<unsigned char>(text[i]));
  };
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && is_digit(i + 1) && is_digit(i + 2)) {
      out += absl::HexStringToBytes(base::ToAbsl(text.substr(i + 1, 2)));
      i += 2;
    } else {
      out += text[i] == '+' ? ' ' : text[i];
    }
  }
  return out;
}

}  // namespace

QueryFields::QueryFields(std::string_view query) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    if (pair.empty()) continue;
    const std::size_t equals = std::min(pair.find('='), pair.size());
    Parameter parameter{.name = Decoded(pair.substr(0, equals)),
                        .value = Decoded(pair.substr(std::min(pair.size(), equals + 1)))};
    if (!base::IsValidUtf8(parameter.name) || !base::IsValidUtf8(parameter.value)) Fail("query", "is not UTF-8");
    parameters_.push_back(std::move(parameter));
  }
}

void QueryFields::Fail(std::string_view name, std::string_view message) {
  if (status_.ok()) status_ = base::FieldError(name, message);
}

std::optional<std::string> QueryFields::Text(std::string_view name) {
  known_.emplace_back(name);
  std::optional<std::string> found;
  for (Parameter& parameter : parameters_) {
    if (parameter.name != name) continue;
    if (found.has_value()) Fail(name, "is set twice, wanted one value");
    parameter.read = true;
    found = parameter.value;
  }
  return found;
}

std::optional<std::int64_t> QueryFields::Int(std::string_view name, std::int64_t min, std::int64_t max) {
  const auto text = Text(name);
  if (!text.has_value()) return std::nullopt;
  std::int64_t value = 0;
  if (absl::SimpleAtoi(*text, &value) && value >= min && value <= max) return value;
  Fail(name, StrCat("is \"", *text, "\", wanted a whole number from ", min, " to ", max));
  return std::nullopt;
}

bool QueryFields::Ascending() {
  const std::string order = Text("order").value_or("desc");
  if (order != "asc" && order != "desc") Fail("order", StrCat("is \"", order, "\", wanted \"asc\" or \"desc\""));
  return order == "asc";
}

std::map<std::string, std::string> QueryFields::Map(std::string_view name) {
  known_.push_back(StrCat(name, "[KEY]"));
  std::map<std::string, std::string> found;
  for (Parameter& parameter : parameters_) {
    const std::string_view key = parameter.name;
    if (!key.starts_with(StrCat(name, "[")) || !key.ends_with(']')) continue;
    parameter.read = true;
    const auto inner = key.substr(name.size() + 1, key.size() - name.size() - 2);
    if (!found.emplace(inner, parameter.value).second) Fail(parameter.name, "is set twice, wanted one value");
  }
  return found;
}

absl::Status QueryFields::Finish() {
  for (const Parameter& parameter : parameters_) {
    if (parameter.read) continue;
    Fail(parameter.name, StrCat("is not a parameter of this request", base::DidYouMean(parameter.name, known_)));
    break;
  }
  return status_;
}

}  // namespace nibble::openai
