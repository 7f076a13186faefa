// F9 (docs/faults.md): model.safetensors of an artifact with packed weights. The first byte of the input selects the
// nibble.json (int8, int8 with an int8 head, nf4, ternary, nf4 with scales in f32); the rest is the file. Loading reads
// every int8 and ternary code and every nf4 scale. If the floats are in the range of real models, an int8 or ternary
// model also runs, and its logits are finite.
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "kernels/isa.h"
#include "server/base/json.h"
#include "server/model/forward.h"
#include "server/model/loaded_model.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/temp_directory.h"

using nibble::fuzz::Expect;
using nibble::fuzz::ExpectClean;
namespace base = nibble::base;
namespace kernels = nibble::kernels;
namespace model = nibble::model;

namespace {

constexpr float kMaxFloat = 10.0F;  // a model with a larger float is not run, because its sums may overflow f32

// make_corpus.py uses the same sizes. The rows of down_proj (10 columns) end inside a byte of ternary codes, a tile and
// an nf4 block.
model::ModelConfig SmallConfig(bool tied) {
  model::ModelConfig config;
  config.architecture = "llama";
  config.hidden_size = 12;
  config.num_layers = 1;
  config.num_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 8;
  config.ffn_size = 10;
  config.vocab_size = 9;
  config.max_positions = 8;
  config.rms_norm_eps = config.linear_norm_eps = 1e-5;
  config.tied_embeddings = tied;
  return config;
}

// The directory of an artifact, whose model.safetensors is a file in memory.
class ArtifactDirectory {
 public:
  ArtifactDirectory(const model::ArtifactInfo& info, bool tied)
      : fd_(::memfd_create("model.safetensors", MFD_CLOEXEC)) {
    Expect(fd_ >= 0, "memfd_create succeeds");
    std::ofstream(directory_ / "nibble.json") << base::Dump(model::ToJson(info));
    std::ofstream(directory_ / "config.json") << base::Dump(model::ToHfConfig(SmallConfig(tied)));
    std::ofstream(directory_ / "tokenizer.json") << "{}";  // only has to exist
    std::filesystem::create_symlink("/proc/self/fd/" + std::to_string(fd_), directory_ / "model.safetensors");
  }
  ~ArtifactDirectory() { ::close(fd_); }
  ArtifactDirectory(const ArtifactDirectory&) = delete;
  ArtifactDirectory& operator=(const ArtifactDirectory&) = delete;

  const std::string& Path() const { return directory_.path(); }
  void Write(const std::uint8_t* data, std::size_t size) const {
    Expect(::ftruncate(fd_, 0) == 0 && ::pwrite(fd_, data, size, 0) == static_cast<ssize_t>(size),
           "a file in memory can be written");
  }

 private:
  const nibble::testing::TempDirectory directory_;
  const int fd_;
};

model::ArtifactInfo Info(model::Format format, int act_outliers = 0, bool int8_head = false) {
  model::ArtifactInfo info;
  info.format = format;
  info.act_outliers = act_outliers;
  info.int8_head = int8_head;
  if (format == model::Format::kTernary) info.bitnet = model::BitNetInfo();
  return info;
}

model::ArtifactInfo FloatScales() {
  model::ArtifactInfo info = Info(model::Format::kNf4);
  info.nf4 = {.block = 32, .double_quant = false};
  return info;
}

// Whether all floats are in the range of real models.
bool FloatsAreInRange(const model::Artifact& artifact) {
  for (const auto& [name, tensor] : artifact.tensors()) {
    if (tensor.dtype != kernels::DType::kF32 && tensor.dtype != kernels::DType::kBF16) continue;
    const auto values = artifact.FloatTensor(name);
    Expect(values.ok(), "a float tensor can be read");
    for (const float value : *values) {
      if (!(std::fabs(value) <= kMaxFloat)) return false;
    }
  }
  return true;
}

void Run(const model::LoadedModel& loaded, const kernels::Stream& stream) {
  const std::array<std::int32_t, 5> tokens = {0, 8, 3, 3, 1};
  const absl::Status status = model::ForEachLogits(
      loaded.config(), loaded.weights(), tokens, /*chunk=*/3, stream, [](std::int64_t, const kernels::Matrix& logits) {
        for (std::int64_t row = 0; row < logits.rows; ++row) {
          for (std::int64_t i = 0; i < logits.cols; ++i)
            Expect(std::isfinite(logits.Row<float>(row)[i]), "a logit is finite");
        }
        return absl::OkStatus();
      });
  Expect(status.ok(), "a loaded model runs");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::array<ArtifactDirectory, 5> directories = {
      ArtifactDirectory(Info(model::Format::kInt8), /*tied=*/false),
      ArtifactDirectory(Info(model::Format::kInt8, /*act_outliers=*/2, /*int8_head=*/true), /*tied=*/true),
      ArtifactDirectory(Info(model::Format::kNf4), /*tied=*/true),
      ArtifactDirectory(Info(model::Format::kTernary), /*tied=*/true), ArtifactDirectory(FloatScales(), /*tied=*/true)};
  if (size == 0) return 0;
  const ArtifactDirectory& directory = directories[data[0] % directories.size()];
  directory.Write(data + 1, size - 1);
  const auto opened = model::Artifact::Open(directory.Path());
  if (!opened.ok()) {
    Expect(absl::IsInvalidArgument(opened.status()) || absl::IsDataLoss(opened.status()) ||
               absl::IsResourceExhausted(opened.status()),
           "an inconsistent file is refused with the right code");
    ExpectClean(opened.status(), nibble::fuzz::Text(data, size));
    return 0;
  }
  const absl::Status bytes = (*opened)->VerifyBytes();
  Expect(absl::IsDataLoss(bytes), "bytes that do not have the digest of nibble.json are detected");
  ExpectClean(bytes, nibble::fuzz::Text(data, size));
  kernels::Stream stream;
  stream.isa = kernels::DetectIsa();
  const auto loaded = model::LoadedModel::Load(directory.Path(), {}, stream);
  if (!loaded.ok()) {
    Expect(absl::IsDataLoss(loaded.status()), "invalid codes are refused");
    ExpectClean(loaded.status(), nibble::fuzz::Text(data, size));
    return 0;
  }
  Expect((*loaded)->resident_bytes() > 0, "weights take memory");
  // An nf4 model is not run: its head needs a library (Stream::library), and this stream has none.
  if ((*loaded)->info().format != model::Format::kNf4 && FloatsAreInRange(**opened)) Run(**loaded, stream);
  return 0;
}
