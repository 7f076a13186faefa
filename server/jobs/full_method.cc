#include "server/jobs/method.h"

namespace nibble::jobs {
namespace {

class FullSpec : public Method {
 public:
  const char* name() const override { return kMethodFull; }
};

}  // namespace

const Method& Full() {
  static const FullSpec method;
  return method;
}

}  // namespace nibble::jobs
