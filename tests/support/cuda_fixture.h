// The fixture of all tests that need a GPU: without a GPU it skips the test and gives the reason.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/cuda/cuda_buffer.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/stream.h"
#include "tests/support/numeric.h"

namespace nibble::support {

class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const kernels::CudaDevices devices = kernels::FindCudaDevices();
    if (devices.count == 0) GTEST_SKIP() << "no CUDA device: " << devices.reason;
    const kernels::LaunchResult made = kernels::CudaContext::Create(0, &context_);
    ASSERT_EQ(made.code, kernels::LaunchCode::kOk) << made.text;
    stream_.device = kernels::DeviceKind::kCuda;
    stream_.cuda = context_.get();
    stream_.launches = &launches_;
  }

  kernels::LaunchCounter launches_;
  std::unique_ptr<kernels::CudaContext> context_;
  kernels::Stream stream_;
};

// Bytes on the device between two guards: filled like GuardedBytes, or a copy of host bytes.
class DeviceBytes {
 public:
  static constexpr std::int64_t kGuardBytes = 256;
  static constexpr std::uint8_t kFill = 0xa5;

  DeviceBytes(kernels::CudaContext& context, std::int64_t size)
      : host_(static_cast<std::size_t>(size + 2 * kGuardBytes), kFill) {
    Upload(context);
  }
  DeviceBytes(kernels::CudaContext& context, const void* from, std::int64_t size)
      : host_(static_cast<std::size_t>(size + 2 * kGuardBytes), kFill) {
    if (size != 0) std::memcpy(host_.data() + kGuardBytes, from, static_cast<std::size_t>(size));
    Upload(context);
  }
  template <typename T>
  DeviceBytes(kernels::CudaContext& context, const std::vector<T>& from)
      : DeviceBytes(context, from.data(), static_cast<std::int64_t>(from.size() * sizeof(T))) {}

  template <typename T = void>
  T* As() const {
    return reinterpret_cast<T*>(static_cast<std::uint8_t*>(buffer_.data()) + kGuardBytes);
  }

  // Waits, copies back and checks the guards.
  const std::uint8_t* Back() {
    const kernels::LaunchResult copied = buffer_.ToHost(host_.data());
    EXPECT_EQ(copied.code, kernels::LaunchCode::kOk) << copied.text;
    for (std::size_t i = 0; i < kGuardBytes; ++i) {
      EXPECT_EQ(host_[i], kFill) << "guard before the output";
      EXPECT_EQ(host_[host_.size() - 1 - i], kFill) << "guard after the output";
    }
    return host_.data() + kGuardBytes;
  }
  ::testing::AssertionResult Equals(const void* want) {
    return BytesEqual(Back(), want, host_.size() - 2 * kGuardBytes);
  }

 private:
  void Upload(kernels::CudaContext& context) {
    kernels::LaunchResult result = buffer_.Allocate(context, static_cast<std::int64_t>(host_.size()));
    if (result.code == kernels::LaunchCode::kOk) result = buffer_.FromHost(host_.data());
    EXPECT_EQ(result.code, kernels::LaunchCode::kOk) << result.text;
  }

  std::vector<std::uint8_t> host_;
  kernels::CudaBuffer buffer_;
};

}  // namespace nibble::support
