// Scratch memory of one forward pass: bump allocation, kept between passes, grown by whole blocks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "kernels/matrix.h"

namespace nibble::model {

// One thread.
class Arena {
 public:
  // A position in the arena; Release frees everything allocated after it.
  struct Mark {
    std::size_t block = 0;
    std::size_t used = 0;
  };

  Mark mark() const { return {block_, used_}; }
  void Release(Mark mark) {
    block_ = mark.block;
    used_ = mark.used;
  }

  // 64-byte aligned, not cleared.
  void* Allocate(std::size_t bytes) {
    bytes = (bytes + 63) / 64 * 64;
    while (block_ < blocks_.size() && used_ + bytes > blocks_[block_].size) {
      ++block_;
      used_ = 0;
    }
    if (block_ == blocks_.size()) {
      const std::size_t size = bytes > kBlockBytes ? bytes : kBlockBytes;
      blocks_.push_back({std::unique_ptr<void, Free>(std::aligned_alloc(64, size)), size});
      if (blocks_.back().data == nullptr) throw std::bad_alloc();  // out of memory: the process ends, by Nibble's rule
    }
    void* data = static_cast<std::byte*>(blocks_[block_].data.get()) + used_;
    used_ += bytes;
    return data;
  }
  template <typename T>
  T* Allocate(std::int64_t count) {
    return static_cast<T*>(Allocate(static_cast<std::size_t>(count) * sizeof(T)));
  }
  kernels::Matrix AllocateMatrix(kernels::DType dtype, std::int64_t rows, std::int64_t cols) {
    return kernels::MakeMatrix(Allocate(static_cast<std::size_t>(rows * cols * kernels::SizeOf(dtype))), dtype, rows,
                               cols);
  }

 private:
  static constexpr std::size_t kBlockBytes = std::size_t{4} << 20;
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  struct Block {
    std::unique_ptr<void, Free> data;
    std::size_t size;
  };
  std::vector<Block> blocks_;
  std::size_t block_ = 0;
  std::size_t used_ = 0;
};

}  // namespace nibble::model
