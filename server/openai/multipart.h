// Parses the body of a request of type multipart/form-data (RFC 7578) while it arrives.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nibble::openai {

struct FormPart {
  std::string name;
  std::optional<std::string> file_name;  // set if the part is a file
};

// Receives the parts in order. An error ends the parse.
class FormSink {
 public:
  virtual ~FormSink() = default;
  virtual absl::Status BeginPart(const FormPart& part) = 0;
  virtual absl::Status PartBytes(std::string_view bytes) = 0;  // any number of times per part
  virtual absl::Status EndPart() = 0;
};

struct FormLimits {
  std::size_t max_parts = 32;
  std::size_t max_part_header_bytes = 8 << 10;
  std::size_t max_preamble_bytes = 4 << 10;  // before the first part
};

// Keeps at most the header of one part and the bytes of one Feed(). One thread.
class FormParser {
 public:
  // `content_type`: the request's field, with the boundary. Errors: InvalidArgument (FIELD_VIOLATION).
  static absl::StatusOr<FormParser> Make(std::string_view content_type, FormLimits limits, FormSink& sink);

  // Errors, here and below: InvalidArgument: malformed, or above a limit; those of the sink. No call may follow an
  // error.
  absl::Status Feed(std::string_view bytes);
  // The body has ended.
  absl::Status Finish() const;

 private:
  enum class State { kPreamble, kBoundary, kHeader, kBytes, kEpilogue };
  FormParser(std::string delimiter, FormLimits limits, FormSink& sink)
      : delimiter_(std::move(delimiter)), limits_(limits), sink_(&sink) {}
  // False: needs more bytes. Removes what it has used from `rest`.
  absl::StatusOr<bool> Step(std::string_view& rest);
  absl::StatusOr<bool> TakeBytes(std::string_view& rest);
  absl::StatusOr<bool> TakeBoundary(std::string_view& rest);
  absl::StatusOr<bool> TakeHeader(std::string_view& rest);

  std::string delimiter_;  // CR LF "--" and the boundary
  FormLimits limits_;
  FormSink* sink_;
  State state_ = State::kPreamble;
  std::string kept_ = "\r\n";  // not used yet; the first delimiter may lack its CR LF
  std::size_t num_parts_ = 0;
  std::size_t preamble_bytes_ = 0;
};

}  // namespace nibble::openai
