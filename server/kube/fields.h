// Reads of fields of Kubernetes' objects, which may be absent or of another type.
#pragma once
#include <initializer_list>
#include <string>

#include "server/base/json.h"

namespace nibble::kube {

// The value at the path; null if it is absent.
const base::Json& At(const base::Json& object, std::initializer_list<const char*> path);
// The text at the path; "" if it is absent or not a text.
std::string TextAt(const base::Json& object, std::initializer_list<const char*> path);

}  // namespace nibble::kube
