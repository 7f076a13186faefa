// Arguments of add.h and the function type of its kernels, free of absl so that nvcc can read them.
#pragma once
#include "kernels/launch_result.h"
#include "kernels/matrix.h"
#include "kernels/stream.h"

namespace nibble::kernels {

struct AddArgs {
  Matrix x;
  ConstMatrix y;
};

using AddKernel = LaunchResult(const AddArgs& args, const Stream& stream);

}  // namespace nibble::kernels
