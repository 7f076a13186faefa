// Precompiled for the tests that use gRPC and our protos: tests.h and grpc.h.
#pragma once

#include "grpc.h"
#include "tests.h"
