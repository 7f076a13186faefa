// Precompiled for client/cli: grpc.h and CLI11, which is all headers.
#pragma once

#include <CLI/CLI.hpp>

#include "grpc.h"
