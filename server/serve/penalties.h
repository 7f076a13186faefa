// Changes to the logits before a token is drawn: a request's penalties and biases, and tokens that must not be drawn.
#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace nibble::serve {

struct Penalties {
  float repetition = 1;  // CTRL, arXiv:1909.05858: for tokens seen, divides positive logits and multiplies other logits
  float presence = 0;    // OpenAI's: subtracted once from the logit of each generated token
  float frequency = 0;   // OpenAI's: subtracted once per occurrence
  std::vector<std::pair<std::int32_t, float>> bias;  // token, value added to its logit; tokens are distinct

  bool any() const { return repetition != 1 || presence != 0 || frequency != 0 || !bias.empty(); }
};

// Applies bias, repetition (of the prompt's and the generated tokens), frequency and presence, in this order. All in
// f32, so that the same row gives the same result everywhere.
//   logits  [V]  f32, changed in place; every given token is below V
void Apply(const Penalties& penalties, std::span<const std::int32_t> prompt, std::span<const std::int32_t> generated,
           std::span<float> logits);

// Sets the logits of `tokens` to -inf, so that none of them is drawn. Tokens outside the vocabulary are ignored.
//   logits  [V]  f32, changed in place
void MaskTokens(std::span<const std::int32_t> tokens, std::span<float> logits);

}  // namespace nibble::serve
