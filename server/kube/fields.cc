#include "server/kube/fields.h"

namespace nibble::kube {

using base::Json;

const Json& At(const Json& object, std::initializer_list<const char*> path) {
  static const Json null;
  const Json* at = &object;
  for (const char* key : path) {
    if (!at->is_object()) return null;
    const auto found = at->find(key);
    if (found == at->end()) return null;
    at = &*found;
  }
  return *at;
}

std::string TextAt(const Json& object, std::initializer_list<const char*> path) {
  const Json& value = At(object, path);
  return value.is_string() ? value.get<std::string>() : std::string();
}

}  // namespace nibble::kube
