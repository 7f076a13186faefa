// F5 (docs/faults.md): a tokenizer.json, then after the last NUL byte a text for it (without a NUL, a fixed text). The
// text library is in Rust: no panic and no failed allocation may leave it.
#include <string>
#include <vector>

#include "server/text/stream_decoder.h"
#include "server/text/tokenizer.h"
#include "tests/fuzz/fuzz.h"

using nibble::fuzz::Expect;
using nibble::fuzz::ExpectClean;

namespace {

// Decoding token by token gives the same text as decoding at once.
void FuzzStream(const nibble::text::Tokenizer& tokenizer, const std::vector<std::int32_t>& ids,
                const std::string& whole, std::string_view input) {
  nibble::text::StreamDecoder stream(tokenizer, /*skip_special_tokens=*/true);
  std::string text;
  for (const std::int32_t id : ids) {
    const auto delta = stream.Append(id);
    ExpectClean(delta.status(), input);
    if (!delta.ok()) return;
    text += *delta;
  }
  const auto tail = stream.Finish();
  ExpectClean(tail.status(), input);
  if (!tail.ok()) return;
  text += tail->text;
  if (!tail->incomplete_utf8.empty()) text += "\xef\xbf\xbd";
  Expect(text == whole, "a stream gives the text of all its tokens");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input = nibble::fuzz::Text(data, size);
  std::string_view json = input;
  std::string text = "The keeper of the light, \xc3\xa9t\xc3\xa9 1234 \xf0\x9f\x99\x82 </s><|im_end|>\n";
  if (const std::size_t nul = json.rfind('\0'); nul != std::string_view::npos) {
    text = json.substr(nul + 1);
    json = json.substr(0, nul);
  }
  const auto tokenizer = nibble::text::Tokenizer::FromJson(json);
  ExpectClean(tokenizer.status(), input);
  if (!tokenizer.ok()) return 0;
  for (const auto& token : (*tokenizer)->added_tokens()) {
    Expect((*tokenizer)->TokenId(token.content).has_value() || token.content.empty(), "an added token has an id");
  }
  const auto ids = (*tokenizer)->Encode(text, /*add_special_tokens=*/true);
  ExpectClean(ids.status(), input);
  if (!ids.ok()) return 0;
  for (const std::int32_t id : *ids) Expect(id >= 0, "ids are not negative");
  const auto once = (*tokenizer)->EncodeWithSpans(text, /*add_special_tokens=*/true);
  Expect(once.ok() && once->tokens.size() <= ids->size(), "EncodeWithSpans gives no more tokens than Encode");
  for (const auto& span : once->tokens)
    Expect(span.begin <= span.end && span.end <= text.size(), "spans lie in the text");
  const auto whole = (*tokenizer)->Decode(*ids, /*skip_special_tokens=*/true);
  ExpectClean(whole.status(), input);
  if (whole.ok()) FuzzStream(**tokenizer, *ids, *whole, input);
  std::vector<std::int32_t> odd = {0, 1, 1 << 20, INT32_MAX};
  ExpectClean((*tokenizer)->Decode(odd, /*skip_special_tokens=*/false).status(), input);
  odd.push_back(-1);
  const auto negative = (*tokenizer)->Decode(odd, /*skip_special_tokens=*/false);
  Expect(!negative.ok(), "a negative id is refused");
  ExpectClean(negative.status(), input);
  return 0;
}
