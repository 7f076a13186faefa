// Precompiled for the tests that use libtorch.
#pragma once

#include <torch/torch.h>

#include "tests.h"
