// What a request adds to and takes from the logits before a token is drawn, and the tokens that must not be drawn.
#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace nibble::serve {

struct Penalties {
  float repetition = 1;  // CTRL, arXiv:1909.05858: divides positive logits of tokens seen, multiplies the others
  float presence = 0;    // OpenAI's: taken from the logits of tokens generated, once
  float frequency = 0;   // and for each time
  std::vector<std::pair<std::int32_t, float>> bias;  // token, added to its logit; tokens differ

  bool any() const { return repetition != 1 || presence != 0 || frequency != 0 || !bias.empty(); }
};

// In this order: bias, repetition (of the prompt's and the generated tokens), frequency, presence. In f32, so that the same
// row gives the same row everywhere.
//   logits  [V]  f32, changed in place; every token named is below V
void Apply(const Penalties& penalties, std::span<const std::int32_t> prompt, std::span<const std::int32_t> generated,
           std::span<float> logits);

// Sets the logits of `tokens` to -inf, so that none of them is drawn. Tokens outside the vocabulary are ignored.
//   logits  [V]  f32, changed in place
void MaskTokens(std::span<const std::int32_t> tokens, std::span<float> logits);

}  // namespace nibble::serve
