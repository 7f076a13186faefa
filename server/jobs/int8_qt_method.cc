#include "server/jobs/method.h"

namespace nibble::jobs {
namespace {

class Int8QtSpec : public Method {
 public:
  const char* name() const override { return kMethodInt8Qt; }
};

}  // namespace

const Method& Int8Qt() {
  static const Int8QtSpec method;
  return method;
}

}  // namespace nibble::jobs
