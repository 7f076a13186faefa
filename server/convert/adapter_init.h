// Adapters that begin with a part of their base's weights instead of zero: PiSSA and LoftQ. A conversion makes such an
// adapter together with its base, which holds the rest of the weights (docs/adr/0016).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "server/base/cancelled.h"
#include "server/convert/merge.h"
#include "server/model/adapter.h"
#include "server/model/model_config.h"
#include "server/model/nf4_options.h"

namespace nibble::convert {

enum class InitMethod {
  kPissa,  // the largest singular values of W (arXiv:2404.02948)
  kLoftq,  // those of W - Q, the error of the quantized weight (arXiv:2310.08659)
};
const char* Name(InitMethod method);  // "pissa", "loftq"

inline constexpr int kMaxLoftqIterations = 16;

struct AdapterInit {
  InitMethod method = InitMethod::kPissa;
  model::AdapterConfig adapter;
  int iterations = 1;  // kLoftq: how often W is quantized and the error decomposed
};

// InvalidArgument (FIELD_VIOLATION) for "adapter_init" or a field of it: DoRA, iterations out of range (with kPissa:
// other than 1), a rank above the rows or columns of a target, and the errors of CheckAdapterTargets.
absl::Status CheckAdapterInit(const AdapterInit& init, const model::ModelConfig& config);

// PiSSA: rest = W - scaling * B A. LoftQ: scaling * B A is close to W - Q, where the base Q is `rest` in nf4.
struct InitialAdapter {
  std::vector<float> a;     // [r, K]
  std::vector<float> b;     // [N, r]
  std::vector<float> rest;  // [N, K]: the base's weight before it is quantized or rounded
};

// `name`: of the weight, for errors. nf4: the form of the base, for kLoftq. One weight takes at most
// InitialAdapterBytes. Errors: InvalidArgument (values that are not finite, or too large), Cancelled.
absl::StatusOr<InitialAdapter> MakeInitialAdapter(const std::string& name, WeightReader& weight,
                                                  const AdapterInit& init, const model::LinearAdapter& adapter,
                                                  const model::Nf4Options& nf4, const kernels::Stream& stream,
                                                  const base::Cancelled& cancelled);

// Peak memory of MakeInitialAdapter over all weights of the model.
std::int64_t InitialAdapterBytes(const AdapterInit& init, const model::ModelConfig& config);

}  // namespace nibble::convert
