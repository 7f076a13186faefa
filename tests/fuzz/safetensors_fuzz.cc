// F1 (docs/faults.md): a safetensors file. The tensors of an accepted file follow each other without holes or overlap
// to the end of the file, and each has the number of bytes for its shape and type.
#include <span>

#include "server/model/safetensors.h"
#include "tests/fuzz/fuzz.h"

using nibble::fuzz::Expect;
using nibble::fuzz::ExpectClean;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  const auto header = nibble::model::ParseSafetensors(file, "input");
  if (!header.ok()) {
    Expect(!header.status().message().empty(), "a refusal says why");
    ExpectClean(header.status(), nibble::fuzz::Text(data, size));
    return 0;
  }
  const std::byte* end = nullptr;
  for (const auto& tensor : header->tensors) {
    const auto elements = nibble::model::NumElements(tensor.shape);
    Expect(elements.has_value() || tensor.bytes.empty(), "the product of a shape fits int64 if there are bytes");
    Expect(!nibble::model::ShapeText(tensor.shape).empty(), "a shape has a text");
    if (tensor.dtype.has_value() && elements.has_value()) {
      Expect(static_cast<std::int64_t>(tensor.bytes.size()) == *elements * nibble::kernels::SizeOf(*tensor.dtype),
             "bytes are elements times their size");
    }
    if (tensor.bytes.empty()) continue;
    Expect(tensor.bytes.data() >= file.data() && tensor.bytes.data() + tensor.bytes.size() <= file.data() + file.size(),
           "bytes are inside the file");
    Expect(end == nullptr || tensor.bytes.data() == end, "no hole and no overlap");
    end = tensor.bytes.data() + tensor.bytes.size();
    // Reads the first and the last byte: a range outside the file would crash here.
    Expect(static_cast<int>(tensor.bytes.front()) + static_cast<int>(tensor.bytes.back()) >= 0, "readable");
  }
  Expect(end == nullptr || end == file.data() + file.size(), "the last tensor ends the file");
  return 0;
}
