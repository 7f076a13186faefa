// Precompiled for client/cli: grpc.h and CLI11, which consists of headers only.
#pragma once

#include <CLI/CLI.hpp>

#include "grpc.h"
