// F7: a GGUF file: the reader with every typed read of a few keys, the values of its tensors, and the import (config,
// tokenizer and template from its metadata).
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "server/model/gguf.h"
#include "server/model/safetensors.h"
#include "server/model/weight_source.h"
#include "tests/fuzz/fuzz.h"

using nibble::fuzz::Expect;
using nibble::fuzz::ExpectClean;

namespace {

constexpr std::int64_t kMaxElements = 1 << 16;  // larger tensors are not dequantized here, to limit the time

void FuzzReader(std::string_view input) {
  const auto file =
      nibble::model::GgufFile::Parse({reinterpret_cast<const std::byte*>(input.data()), input.size()}, "input");
  ExpectClean(file.status(), input);
  if (!file.ok()) return;
  for (const char* key :
       {"general.architecture", "general.alignment", "llama.block_count", "tokenizer.ggml.tokens",
        "tokenizer.ggml.scores", "tokenizer.ggml.token_type", "tokenizer.ggml.add_bos_token", "absent"}) {
    ExpectClean((*file)->Int(key).status(), input);
    ExpectClean((*file)->Float(key).status(), input);
    ExpectClean((*file)->Bool(key).status(), input);
    ExpectClean((*file)->String(key).status(), input);
    ExpectClean((*file)->Strings(key).status(), input);
    ExpectClean((*file)->Int32s(key).status(), input);
    ExpectClean((*file)->Float32s(key).status(), input);
  }
  for (const auto& [name, tensor] : (*file)->tensors()) {
    const auto elements = nibble::model::NumElements(tensor.shape);
    Expect(elements.has_value() && !tensor.shape.empty(), "a tensor has a shape");
    Expect(*elements % nibble::model::BlockElements(tensor.type) == 0 &&
               *elements / nibble::model::BlockElements(tensor.type) * nibble::model::BlockBytes(tensor.type) ==
                   static_cast<std::int64_t>(tensor.bytes.size()),
           "bytes are blocks times their size");
    if (*elements > kMaxElements) continue;
    const auto values = nibble::model::DequantizeGguf(tensor.type, tensor.bytes, *elements);
    Expect(static_cast<std::int64_t>(values.size()) == *elements, "one value per element");
  }
}

void FuzzImport(const std::uint8_t* data, std::size_t size) {
  const int fd = ::memfd_create("input.gguf", MFD_CLOEXEC);
  Expect(fd >= 0 && ::write(fd, data, size) == static_cast<ssize_t>(size), "a file in memory can be written");
  ExpectClean(nibble::model::OpenGgufModel("/proc/self/fd/" + std::to_string(fd)).status(),
              nibble::fuzz::Text(data, size));
  ::close(fd);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzReader(nibble::fuzz::Text(data, size));
  FuzzImport(data, size);
  return 0;
}
