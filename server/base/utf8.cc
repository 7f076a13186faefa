#include "server/base/utf8.h"

#include <cstdint>

namespace nibble::base {
namespace {

enum class Shape { kWhole, kCut, kInvalid };

struct Sequence {
  Shape shape;
  std::size_t size;  // bytes that belong together, at least 1
};

bool InRange(std::uint8_t byte, std::uint8_t low, std::uint8_t high) { return low <= byte && byte <= high; }

// Unicode 15, table 3-7: the second byte's range depends on the first.
Sequence FirstSequence(std::string_view bytes) {
  const auto at = [&](std::size_t i) { return static_cast<std::uint8_t>(bytes[i]); };
  const std::uint8_t lead = at(0);
  if (lead < 0x80) return {Shape::kWhole, 1};
  std::size_t size = 0;
  std::uint8_t low = 0x80;
  std::uint8_t high = 0xBF;
  if (InRange(lead, 0xC2, 0xDF)) {
    size = 2;
  } else if (InRange(lead, 0xE0, 0xEF)) {
    size = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (InRange(lead, 0xF0, 0xF4)) {
    size = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {Shape::kInvalid, 1};
  }
  for (std::size_t i = 1; i < size; ++i) {
    if (i == bytes.size()) return {Shape::kCut, i};
    if (!InRange(at(i), low, high)) return {Shape::kInvalid, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Shape::kWhole, size};
}

}  // namespace

std::size_t TakeWholeCharacters(std::string_view bytes, std::string* text) {
  std::size_t taken = 0;
  while (taken < bytes.size()) {
    const Sequence sequence = FirstSequence(bytes.substr(taken));
    if (sequence.shape == Shape::kCut) break;
    if (sequence.shape == Shape::kWhole) {
      text->append(bytes.substr(taken, sequence.size));
    } else {
      text->append("\uFFFD");
    }
    taken += sequence.size;
  }
  return taken;
}

bool IsValidUtf8(std::string_view bytes) {
  while (!bytes.empty()) {
    const Sequence sequence = FirstSequence(bytes);
    if (sequence.shape != Shape::kWhole) return false;
    bytes.remove_prefix(sequence.size);
  }
  return true;
}

void AppendJsonString(std::string_view value, std::string* json) {
  constexpr std::string_view kHex = "0123456789abcdef";
  json->push_back('"');
  for (const char c : value) {
    const auto byte = static_cast<std::uint8_t>(c);
    if (c == '"' || c == '\\') {
      json->push_back('\\');
      json->push_back(c);
    } else if (byte < 0x20) {
      json->append("\\u00");
      json->push_back(kHex[byte >> 4]);
      json->push_back(kHex[byte & 15]);
    } else {
      json->push_back(c);
    }
  }
  json->push_back('"');
}

}  // namespace nibble::base
