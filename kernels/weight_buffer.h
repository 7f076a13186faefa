// Memory for packed weights. Decoding reads every weight once a token, so address translation shows: on the machine of
// docs/benchmarks.md one core reads 21 GB/s from 4 KiB pages and 30 GB/s from 2 MiB pages.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

namespace nibble::kernels {

// Zeroed bytes at a 2 MiB boundary (64 bytes when small), on huge pages where the system gives them. Move-only.
class WeightBuffer {
 public:
  WeightBuffer() = default;  // empty
  // Null data() with size() 0 when the memory cannot be had: the caller says which weight did not fit.
  explicit WeightBuffer(std::int64_t size);

  std::uint8_t* data() const { return data_.get(); }
  std::int64_t size() const { return data_ == nullptr ? 0 : size_; }
  template <typename T>
  T* As() const { return reinterpret_cast<T*>(data_.get()); }

 private:
  struct Free {
    void operator()(std::uint8_t* p) const;
  };
  std::unique_ptr<std::uint8_t, Free> data_;
  std::int64_t size_ = 0;
};

}  // namespace nibble::kernels
