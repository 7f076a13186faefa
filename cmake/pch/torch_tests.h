// Precompiled for the tests that use libtorch: tests.h and libtorch.
#pragma once

#include "tests.h"
#include "torch.h"
