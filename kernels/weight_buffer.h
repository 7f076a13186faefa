// Memory for packed weights. Decoding reads every weight once per token, so address translation matters: on the machine
// of docs/benchmarks.md one core reads 21 GB/s from 4 KiB pages and 30 GB/s from 2 MiB pages.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

namespace nibble::kernels {

// Zeroed bytes at a 2 MiB boundary (64 bytes when small), on huge pages where the system provides them. Move-only.
class WeightBuffer {
 public:
  WeightBuffer() = default;  // empty
  // If the allocation fails, data() is null and size() is 0; the caller reports which weight did not fit.
  explicit WeightBuffer(std::int64_t size);

  std::uint8_t* data() const { return data_.get(); }
  std::int64_t size() const { return data_ == nullptr ? 0 : size_; }
  template <typename T>
  T* As() const {
    return reinterpret_cast<T*>(data_.get());
  }

 private:
  struct Free {
    void operator()(std::uint8_t* p) const;
  };
  std::unique_ptr<std::uint8_t, Free> data_;
  std::int64_t size_ = 0;
};

}  // namespace nibble::kernels
