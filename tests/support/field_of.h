#pragma once
#include <absl/status/status.h>
#include <gtest/gtest.h>

#include <string>

#include "server/base/error.h"

namespace nibble::testing {

// The field that a FIELD_VIOLATION names, empty for OK. Any other error fails the test.
inline std::string FieldOf(const absl::Status& status) {
  if (status.ok()) return "";
  EXPECT_EQ(base::Reason(status), "FIELD_VIOLATION") << status;
  return base::ReasonMetadata(status)["field"];
}

}  // namespace nibble::testing
