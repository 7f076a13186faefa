// A file of prompts: JSON lines of {"prompt": TEXT} or {"messages": [{"role": TEXT, "content": TEXT}, ...]}, or plain
// text with one prompt per line. The first line that is not blank decides: JSON begins with "{". Blank lines are
// skipped. Other keys of a JSON line are ignored, and so is an assistant's message at the end (unless it is the only
// message), so that a dataset's rows can be used as prompts.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "nibble/v1/inference_service.pb.h"
#include "server/base/files.h"

namespace nibble::cli {

struct Prompt {
  std::int64_t line = 0;        // its number in the file, from 1
  v1::GenerateRequest request;  // only its text or chat is set
};

class PromptFile {
 public:
  // Checks every line. The file is mapped; one line is in memory at a time. NotFound if it cannot be read;
  // InvalidArgument (FIELD_VIOLATION), with the number of the line, for a line that is not a prompt of the file's
  // format or longer than 64 MiB, and for a file without a prompt.
  static absl::StatusOr<PromptFile> Open(const std::string& path);
  // Calls `use` for each prompt in order, until it returns an error.
  absl::Status ForEach(const std::function<absl::Status(const Prompt&)>& use) const;

 private:
  explicit PromptFile(std::shared_ptr<const base::MappedFile> file) : file_(std::move(file)) {}
  std::shared_ptr<const base::MappedFile> file_;
};

}  // namespace nibble::cli
