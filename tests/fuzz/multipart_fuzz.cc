// F12 (docs/faults.md): the body of an uploaded form. The first byte is the size of the pieces in which it arrives. For
// any bytes, the parts are the same in one piece and in many, and none has more bytes than the body.
#include <algorithm>
#include <string>

#include "server/openai/multipart.h"
#include "tests/fuzz/fuzz.h"

using nibble::fuzz::Expect;

namespace {

class Record final : public nibble::openai::FormSink {
 public:
  absl::Status BeginPart(const nibble::openai::FormPart& part) override {
    text += "[" + part.name + "|" + part.file_name.value_or("-") + "|";
    return absl::OkStatus();
  }
  absl::Status PartBytes(std::string_view bytes) override {
    num_bytes += bytes.size();
    text += bytes;
    return absl::OkStatus();
  }
  absl::Status EndPart() override {
    text += "]";
    return absl::OkStatus();
  }
  std::string text;
  std::size_t num_bytes = 0;
};

absl::Status Parse(std::string_view body, std::size_t piece, Record& record) {
  auto parser = nibble::openai::FormParser::Make("multipart/form-data; boundary=b", {}, record);
  Expect(parser.ok(), "the content type is valid");
  while (!body.empty()) {
    const std::string_view next = body.substr(0, piece);
    body.remove_prefix(next.size());
    if (absl::Status status = parser->Feed(next); !status.ok()) return status;
  }
  return parser->Finish();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view body = nibble::fuzz::Text(data + 1, size - 1);
  Record whole, pieces;
  const absl::Status status = Parse(body, std::string_view::npos, whole);
  nibble::fuzz::ExpectClean(status, body);
  Expect(whole.num_bytes <= body.size(), "parts have at most the bytes of the body");
  const absl::Status same = Parse(body, std::max<std::size_t>(1, data[0]), pieces);
  Expect(status.ok() == same.ok(), "pieces do not change whether the body is valid");
  if (status.ok()) Expect(whole.text == pieces.text, "pieces do not change the parts");
  return 0;
}
