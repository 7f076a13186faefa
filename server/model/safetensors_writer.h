// Writes a safetensors file tensor by tensor. The same plan and the same bytes give the same file.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/dtype.h"
#include "server/base/files.h"
#include "server/base/sha256.h"

namespace nibble::model {

struct TensorPlan {
  std::string name;
  kernels::DType dtype;
  std::vector<std::int64_t> shape;
};

struct TensorDigest {
  std::string name;
  kernels::DType dtype;
  std::vector<std::int64_t> shape;
  std::string sha256;  // of its bytes
};

// SHA-256 over "NAME DTYPE [SHAPE] SHA256(bytes)\n" of every tensor, sorted by name: the value of `weights_digest`.
std::string WeightsDigest(std::vector<TensorDigest> tensors);

// The file stores narrow types first and, within one width, tensors in the order of the plan. The header is padded so
// that every tensor begins at a multiple of its element size, and the first of the widest at a multiple of 64. One
// thread.
class SafetensorsWriter {
 public:
  // Errors: InvalidArgument (duplicate or reserved name, size overflow, header too long), those of the file system.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(
      base::FileSystem& files, const std::string& path, std::vector<TensorPlan> plan,
      const std::map<std::string, std::string>& metadata = {});

  // The tensors in file order.
  const std::vector<TensorPlan>& order() const { return order_; }
  // Writes all bytes of one tensor; once per tensor. A tensor put before its turn is kept in memory until then.
  absl::Status Put(std::string_view name, std::string_view bytes);
  // Syncs and closes the file. Internal when a tensor was never put.
  absl::Status Finish();
  const std::vector<TensorDigest>& digests() const { return digests_; }  // file order; complete after Finish

 private:
  SafetensorsWriter() = default;
  absl::Status Write(std::string_view bytes);

  std::unique_ptr<base::WritableFile> file_;
  std::vector<TensorPlan> order_;
  std::map<std::string, std::size_t, std::less<>> position_;
  std::map<std::size_t, std::string> held_;
  std::size_t next_ = 0;
  std::vector<TensorDigest> digests_;
};

}  // namespace nibble::model
