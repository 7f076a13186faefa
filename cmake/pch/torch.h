// Precompiled for the files that use libtorch. Not <torch/torch.h>: what its modules, optimizers and data loaders
// instantiate would be compiled again in each file, for twice the time.
#pragma once

#include <torch/autograd.h>
#include <torch/types.h>
#include <torch/utils.h>
