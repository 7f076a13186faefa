// Precompiled for what reads a command line: grpc.h and CLI11, which consists of headers only. Not in grpc.h: it makes
// each of the many files that use gRPC and its tests a fifth slower to compile.
#pragma once

#include <CLI/CLI.hpp>

#include "grpc.h"
