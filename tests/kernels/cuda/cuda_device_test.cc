#include "kernels/cuda/cuda_device.h"

#include <gtest/gtest.h>

#include "kernels/ops/quantize/dequantize_nf4.h"
#include "tests/support/cuda_fixture.h"

namespace nibble::kernels {
namespace {

class CudaContextTest : public support::CudaTest {};

// Holds in every build and on every machine.
TEST(CudaDeviceTest, GivesReasonWhenThereIsNoDevice) {
  const CudaDevices devices = FindCudaDevices();
  EXPECT_GE(devices.count, 0);
  EXPECT_EQ(devices.count == 0, !devices.reason.empty()) << devices.reason;
  CudaDeviceInfo info;
  const LaunchResult past_the_last = DescribeCudaDevice(devices.count, &info);
  EXPECT_NE(past_the_last.code, LaunchCode::kOk);
  EXPECT_STRNE(past_the_last.text, "");
  std::unique_ptr<CudaContext> context;
  EXPECT_NE(CudaContext::Create(devices.count, &context).code, LaunchCode::kOk);
  EXPECT_EQ(context, nullptr);
}

TEST(CudaDeviceTest, RejectsCudaOpWithoutContext) {
  const std::uint8_t codes[1] = {0};
  const float absmax[1] = {1.0f};
  float out[2];
  Stream stream;
  stream.device = DeviceKind::kCuda;
  const absl::Status status = DequantizeNf4({{codes, absmax, 1, 2}, MakeMatrix(out, DType::kF32, 1, 2)}, stream);
  EXPECT_TRUE(absl::IsUnimplemented(status) || absl::IsInternal(status)) << status;
}

TEST_F(CudaContextTest, DescribesItsDevice) {
  CudaDeviceInfo info;
  ASSERT_EQ(DescribeCudaDevice(0, &info).code, LaunchCode::kOk);
  EXPECT_FALSE(info.name.empty());
  EXPECT_GE(info.major, 8);
  EXPECT_GT(info.total_bytes, 0);
}

TEST_F(CudaContextTest, ScratchGrowsAndIsReused) {
  void* small = nullptr;
  void* again = nullptr;
  void* large = nullptr;
  ASSERT_EQ(context_->Scratch(1000, &small).code, LaunchCode::kOk);
  ASSERT_EQ(context_->Scratch(10, &again).code, LaunchCode::kOk);
  EXPECT_EQ(small, again);
  ASSERT_EQ(context_->Scratch(1 << 20, &large).code, LaunchCode::kOk);
  EXPECT_NE(large, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(large) % 256, 0u);
  ASSERT_EQ(context_->Scratch(1000, &again).code, LaunchCode::kOk);
  EXPECT_EQ(large, again);
  EXPECT_EQ(context_->Synchronize().code, LaunchCode::kOk);
}

TEST_F(CudaContextTest, MovedBufferKeepsItsBytes) {
  CudaBuffer buffer;
  ASSERT_EQ(buffer.Allocate(*context_, 5).code, LaunchCode::kOk);
  const char sent[5] = {'a', 'b', 'c', 'd', 'e'};
  ASSERT_EQ(buffer.FromHost(sent).code, LaunchCode::kOk);
  CudaBuffer moved = std::move(buffer);
  char got[5] = {};
  ASSERT_EQ(moved.ToHost(got).code, LaunchCode::kOk);
  EXPECT_EQ(std::string(got, 5), "abcde");
}

}  // namespace
}  // namespace nibble::kernels
