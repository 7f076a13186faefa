// The bytes that each token of a vocabulary stands for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::text {

// Of every token: of a byte-level token the bytes that its characters spell ("Ġthe" is " the"), of a <0xNN> token that byte, of an
// added token its text, of any other token what it adds to a text after another token ("▁the" is " the"). Under a decoder that rewrites
// whole texts (WordPiece), the token decoded alone. One blob and an offset a token. Thread-compatible.
class TokenBytes {
 public:
  // A decoder can make much text of a short token; no tokenizer in use has tokens of a tenth of this.
  static constexpr std::size_t kMaxBytes = 4096;

  // Adds the first kMaxBytes bytes of `id`. Ids ascend.
  void Add(std::int32_t id, std::string_view bytes);
  // Empty for an id without a token: models pad their vocabulary. Valid as long as this object.
  std::string_view Of(std::int32_t id) const;
  // Bytes of the `count` longest tokens together, or of all tokens where there are fewer: an upper bound for as many different tokens.
  // count: at most kMaxLongest.
  std::size_t BytesOfLongest(std::size_t count) const;
  static constexpr std::size_t kMaxLongest = 32;
  // Upper bound of the bytes that one token adds to a text, where a byte that is not UTF-8 becomes U+FFFD.
  std::size_t longest_text_bytes() const { return longest_text_bytes_; }

 private:
  std::vector<std::int32_t> ids_;
  std::vector<std::uint32_t> ends_;     // of ids_, in blob_
  std::string blob_;
  std::vector<std::size_t> longest_;    // descending
  std::size_t longest_text_bytes_ = 0;
};

}  // namespace nibble::text
