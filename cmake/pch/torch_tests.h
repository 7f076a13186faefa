// Precompiled for the tests that use libtorch: tests.h and libtorch.
#pragma once

#include <torch/torch.h>

#include "tests.h"
