// Reads the parameters of a URL's query, and refuses those that were not read.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace nibble::openai {

// A wrong value gives nullopt, and the first error is returned by Finish().
class QueryFields {
 public:
  // `query`: as in the URL, without "?".
  explicit QueryFields(std::string_view query);

  std::optional<std::string> Text(std::string_view name);
  std::optional<std::int64_t> Int(std::string_view name, std::int64_t min, std::int64_t max);
  // `order`: "asc" or "desc", the default. True: ascending.
  bool Ascending();
  // The parameters NAME[key]=value.
  std::map<std::string, std::string> Map(std::string_view name);

  void Fail(std::string_view name, std::string_view message);
  // The first error: InvalidArgument (FIELD_VIOLATION). Without one, refuses the first parameter that was not read.
  absl::Status Finish();

 private:
  struct Parameter {
    std::string name;
    std::string value;
    bool read = false;
  };
  std::vector<Parameter> parameters_;
  std::vector<std::string> known_;
  absl::Status status_;
};

}  // namespace nibble::openai
