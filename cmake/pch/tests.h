// Precompiled for the tests that do not use gRPC: std.h and GoogleTest.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <future>
#include <sstream>

#include "std.h"
