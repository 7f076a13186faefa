// A conversation as its model's template renders it, and the part of the text that is trained.
#pragma once
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/cancelled.h"
#include "server/data/row.h"
#include "server/text/chat_template.h"

namespace nibble::data {

// Ranges [begin, end) of bytes of a text.
using ByteRanges = std::vector<std::pair<std::size_t, std::size_t>>;

struct RenderedChat {
  std::string text;
  ByteRanges trained;  // in any order; ranges may overlap or be empty
};

// Renders a conversation and finds the text that is trained. For an answer: everything after the generation prompt, up
// to the next turn; or the {% generation %} blocks if the template has them. For another message with "train": true:
// its whole turn. With train_on_prompt: everything except these parts of messages with "train": false.
//
// Finds turns in the rendering of the whole conversation (ChatTemplate::RenderTurns), so the template may render the
// last answer differently, or move the system prompt. If that fails, for example because the template has no loop over
// the messages, and the template has no {% generation %} blocks, compares a conversation that ends with the message
// with one that ends before it; the rendering of the whole conversation must begin with both. The time that templates
// see is noon UTC on 26 July 2024.
//
// Costs at most 11 renderings, and two more for each message that is compared in this way. Calls `cancelled`
// before each rendering or pair of renderings.
//
// Errors: InvalidArgument (TEMPLATE_ERROR, which names the message whose turn is not found); Cancelled.
absl::StatusOr<RenderedChat> RenderChat(const Row& row, const text::ChatTemplate& chat, bool train_on_prompt,
                                        const base::Cancelled& cancelled);

}  // namespace nibble::data
