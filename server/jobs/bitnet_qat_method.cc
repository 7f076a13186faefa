#include "server/base/strings.h"
#include "server/jobs/method.h"
#include "server/jobs/spec_checker.h"

namespace nibble::jobs {
namespace {

class BitNetQatSpec : public Method {
 public:
  const char* name() const override { return kMethodBitNetQat; }

  void Check(const JobSpec& spec, SpecChecker& check) const override {
    const BitNetQatMethod& bitnet = spec.bitnet_qat;
    if (bitnet.act_bits != 4 && bitnet.act_bits != 8 && bitnet.act_bits != 16) {
      check.Add("bitnet_qat.act_bits", base::StrCat("is ", bitnet.act_bits, ", wanted 4, 8 or 16"));
    }
    if (bitnet.scale_grad && bitnet.ste == "identity") {
      check.Add("bitnet_qat.scale_grad", "is true, which ste identity does not use: wanted ste round_only or clipped");
    }
  }
};

}  // namespace

const Method& BitNetQat() {
  static const BitNetQatSpec method;
  return method;
}

}  // namespace nibble::jobs
