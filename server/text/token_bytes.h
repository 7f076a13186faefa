// The bytes that each token of a vocabulary stands for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::text {

// Holds for each token: the bytes that its characters spell for a byte-level token ("Ġthe" is " the"), the byte of a
// <0xNN> token, the text of an added token, and for any other token the text that it adds after another token ("▁the"
// is " the"). Under a decoder that rewrites whole texts (WordPiece), holds the text of the token decoded alone. Stored
// as one blob and one offset per token. Thread-compatible.
class TokenBytes {
 public:
  // A decoder can turn a short token into a long text. No tokenizer in use has tokens even a tenth as long.
  static constexpr std::size_t kMaxBytes = 4096;

  // Adds `id` with the first kMaxBytes of its `bytes`. Ids must ascend.
  void Add(std::int32_t id, std::string_view bytes);
  // Empty for an id without a token (models pad their vocabulary). Valid until the next Add.
  std::string_view Of(std::int32_t id) const;
  // Total bytes of the `count` longest tokens, or of all tokens if there are fewer: an upper bound for `count`
  // different tokens. count: at most kMaxLongest.
  std::size_t BytesOfLongest(std::size_t count) const;
  static constexpr std::size_t kMaxLongest = 32;
  // Upper bound of the bytes that one token adds to a text, if each byte that is not UTF-8 becomes U+FFFD.
  std::size_t longest_text_bytes() const { return longest_text_bytes_; }

 private:
  std::vector<std::int32_t> ids_;
  std::vector<std::uint32_t> ends_;  // end of the bytes of each of ids_ in blob_
  std::string blob_;
  std::vector<std::size_t> longest_;  // descending
  std::size_t longest_text_bytes_ = 0;
};

}  // namespace nibble::text
