// Picks the path of an op from its table, runs it, counts the launch and turns its result into a Status.
#pragma once
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/launch_result.h"
#include "kernels/stream.h"

namespace nibble::kernels {

// Paths of one op, null where the op has no such path. NibbleOp.cmake generates the table. All CPU paths of an op give
// equal bits unless its docstring says otherwise, so a slower path may replace a missing fast one.
template <typename Kernel>
struct KernelTable {
  const char* name;
  Kernel* plain;
  Kernel* avx2;
  Kernel* avx512;
  Kernel* cuda;
};

template <typename Kernel>
Kernel* Pick(const KernelTable<Kernel>& table, const Stream& stream) {
  if (stream.device == DeviceKind::kCuda) return table.cuda;
  if (stream.isa >= Isa::kAvx512 && table.avx512 != nullptr) return table.avx512;
  if (stream.isa >= Isa::kAvx2 && table.avx2 != nullptr) return table.avx2;
  return table.plain;
}

// Runs the op's path for the stream's device and instruction set. Counts one launch on the CPU; CUDA paths count each
// grid where they launch it.
template <typename Args>
absl::Status Launch(const KernelTable<LaunchResult(const Args&, const Stream&)>& table, const Args& args,
                    const Stream& stream) {
  auto* kernel = Pick(table, stream);
  if (kernel == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat(table.name, ": no ", stream.device == DeviceKind::kCuda ? "CUDA" : "CPU", " path in this build"));
  }
  if (stream.device == DeviceKind::kCpu && stream.launches != nullptr) stream.launches->Add(table.name);
  const LaunchResult result = kernel(args, stream);
  switch (result.code) {
    case LaunchCode::kOk: return absl::OkStatus();
    case LaunchCode::kUnimplemented: return absl::UnimplementedError(absl::StrCat(table.name, ": ", result.text));
    case LaunchCode::kResourceExhausted:
      return absl::ResourceExhaustedError(absl::StrCat(table.name, ": ", result.text));
    case LaunchCode::kInternal: return absl::InternalError(absl::StrCat(table.name, ": ", result.text));
  }
  return absl::InternalError(table.name);
}

}  // namespace nibble::kernels
