// Reads the fields of a JSON object of a request, and refuses the fields that were not read.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "server/base/json.h"

namespace nibble::openai {

// An absent field and null are the same: nullopt or nullptr. A value of another type gives nullopt, and the first such
// error is returned by Finish(). `path` begins the names in messages: "messages[0]."; "" for the request itself. The
// object must outlive the reader.
class JsonFields {
 public:
  explicit JsonFields(const base::Json& object, std::string path = "");

  std::optional<std::string> String(std::string_view name);
  std::optional<bool> Bool(std::string_view name);
  std::optional<double> Number(std::string_view name);
  // A number without a fraction, also if it is written as 1.0 or 1e3.
  std::optional<std::int64_t> Int(std::string_view name);
  // A value of any type.
  const base::Json* Any(std::string_view name);
  // An array; nullptr also for a value of another type.
  const base::Json* Array(std::string_view name);
  // Reads the fields of an object with `read`. A null or absent object has no fields and is not read.
  void Object(std::string_view name, const std::function<void(JsonFields&)>& read);

  // A field without effect here: any value is accepted.
  void Ignore(std::string_view name) { Any(name); }
  // A field that is not supported: accepted if it has this value, which is the default of OpenAI's API.
  void Neutral(std::string_view name, const base::Json& value);
  // A field that is not supported with any value, except an empty array or object.
  void Unsupported(std::string_view name);

  // Records an error about a field that has been read.
  void Fail(std::string_view name, std::string_view message);
  // Records the error of a reader of a part, whose message names the field.
  void FailWith(const absl::Status& status);
  bool failed() const { return !status_.ok(); }
  // The first error: InvalidArgument (FIELD_VIOLATION). Without one, refuses the first field that was not read.
  absl::Status Finish();

 private:
  void WrongType(std::string_view name, const base::Json& value, const char* wanted);

  const base::Json& object_;
  const std::string path_;
  std::vector<std::string> known_;
  absl::Status status_;
};

// "a string", "an array" and so on, for messages.
const char* TypeName(const base::Json& value);

}  // namespace nibble::openai
