// F4: a training file. The result does not depend on the chunks of the file; an accepted file has rows, and
// an accepted chat has messages.
#include <string>

#include "server/data/row.h"
#include "tests/fuzz/fuzz.h"

using nibble::data::FileValidator;
using nibble::fuzz::Expect;
using nibble::fuzz::ExpectClean;

namespace {

absl::StatusOr<nibble::data::FileSummary> Validate(std::string_view text, std::size_t chunk) {
  FileValidator validator(std::nullopt);
  for (std::size_t at = 0; at < text.size(); at += chunk) validator.Feed(text.substr(at, chunk));
  return validator.Finish();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = nibble::fuzz::Text(data, size);
  const auto whole = Validate(text, size + 1);
  const auto cut = Validate(text, 1 + size % 7);
  Expect(whole.status() == cut.status(), "chunks do not change the result");
  ExpectClean(whole.status(), text);
  if (whole.ok()) {
    Expect(whole->num_rows == cut->num_rows && whole->num_bytes == cut->num_bytes && whole->format == cut->format,
           "chunks do not change the summary");
    Expect(whole->num_rows > 0, "a file without rows is refused");
  }
  for (const auto format :
       {nibble::data::RowFormat::kText, nibble::data::RowFormat::kPromptCompletion, nibble::data::RowFormat::kChat}) {
    const auto record = nibble::data::ParseRow(text.substr(0, text.find('\n')), format);
    ExpectClean(record.status(), text);
    if (!record.ok()) continue;
    Expect(format != nibble::data::RowFormat::kChat || !record->roles.empty(), "a chat has messages");
  }
  return 0;
}
