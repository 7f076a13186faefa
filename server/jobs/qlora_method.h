// The options of a qlora job's nf4 base.
#pragma once
#include "absl/status/status.h"
#include "server/jobs/job_spec.h"
#include "server/model/nf4_options.h"

namespace nibble::jobs {

// How the job quantizes a base in f32 or bf16.
model::Nf4Options Nf4OptionsOf(const QLoraMethod& qlora);

// The same method with these options, all of them set.
QLoraMethod WithNf4Options(QLoraMethod qlora, const model::Nf4Options& options);

// Checks the options against a base that is nf4 already, which keeps its own. Options that are not set, and
// double_quant true (the default), fit every base. Errors: InvalidArgument (FIELD_VIOLATION).
absl::Status CheckNf4Base(const QLoraMethod& qlora, const model::Nf4Options& base);

}  // namespace nibble::jobs
