#include "server/jobs/qlora_method.h"

#include "server/base/error.h"
#include "server/base/strings.h"
#include "server/jobs/lora_method.h"
#include "server/jobs/method.h"
#include "server/jobs/spec_checker.h"

namespace nibble::jobs {
namespace {

void CheckBlock(const char* field, const std::optional<std::int64_t>& block, SpecChecker& check) {
  std::string problem = block.has_value() ? model::BlockProblem(*block) : "";
  if (!problem.empty()) check.Add(field, std::move(problem));
}

class QLoraSpec : public Method {
 public:
  const char* name() const override { return kMethodQLora; }

  void Resolve(JobSpec& spec) const override { ResolveAdapter(spec.qlora); }
  void Check(const JobSpec& spec, SpecChecker& check) const override {
    CheckAdapter("qlora", spec.qlora, check);
    CheckBlock("qlora.nf4_block", spec.qlora.nf4_block, check);
    CheckBlock("qlora.scaler_block", spec.qlora.scaler_block, check);
    if (spec.qlora.scaler_block.has_value() && !spec.qlora.double_quant) {
      check.Add("qlora.scaler_block", "is set, wanted unset with double_quant false, which leaves the scales in f32");
    }
    if (spec.qlora.merge_aware_int8 && spec.qlora.dropout != 0.0) {
      check.Add("qlora.dropout", base::StrCat("is ", spec.qlora.dropout,
                                              ", wanted 0 with merge_aware_int8, which trains merged weights"));
    }
    if (spec.qlora.merge_aware_int8 && spec.qlora.use_dora) {
      check.Add("qlora.use_dora", "is true, wanted false with merge_aware_int8");
    }
  }

  bool MayDifferInStart(std::string_view field) const override {
    return field == "merge_aware_int8" || AdapterOptionMayDifferInStart(field);
  }
};

}  // namespace

const Method& QLora() {
  static const QLoraSpec method;
  return method;
}

model::Nf4Options Nf4OptionsOf(const QLoraMethod& qlora) {
  model::Nf4Options options;
  options.block = qlora.nf4_block.value_or(options.block);
  options.double_quant = qlora.double_quant;
  options.scaler_block = qlora.scaler_block.value_or(options.scaler_block);
  return options;
}

QLoraMethod WithNf4Options(QLoraMethod qlora, const model::Nf4Options& options) {
  qlora.nf4_block = options.block;
  qlora.double_quant = options.double_quant;
  qlora.scaler_block = options.scaler_block;
  return qlora;
}

absl::Status CheckNf4Base(const QLoraMethod& qlora, const model::Nf4Options& base) {
  const auto refuse = [&](const char* field, const std::string& got) {
    return base::FieldError(field, base::StrCat("is ", got, ", but the base is nf4 already, with ", Describe(base),
                                                "; leave the field out, or give an f32 or bf16 base"));
  };
  if (qlora.nf4_block.value_or(base.block) != base.block) {
    return refuse("qlora.nf4_block", base::StrCat(*qlora.nf4_block));
  }
  if (!qlora.double_quant && base.double_quant) return refuse("qlora.double_quant", "false");
  if (qlora.scaler_block.has_value() && (!base.double_quant || *qlora.scaler_block != base.scaler_block)) {
    return refuse("qlora.scaler_block", base::StrCat(*qlora.scaler_block));
  }
  return absl::OkStatus();
}

}  // namespace nibble::jobs
