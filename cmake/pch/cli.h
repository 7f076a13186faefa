// Precompiled for code that reads a command line: grpc.h and CLI11, which consists of headers only. grpc.h does not
// include CLI11, because each of the many files that use gRPC would take a fifth longer to compile.
#pragma once

#include <CLI/CLI.hpp>

#include "grpc.h"
