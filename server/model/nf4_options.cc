#include "server/model/nf4_options.h"

#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::model {

using base::StrCat;

namespace {

constexpr char kBlock[] = "block";
constexpr char kDoubleQuant[] = "double_quant";
constexpr char kScalerBlock[] = "scaler_block";

absl::StatusOr<std::int64_t> GetBlock(const base::Json& json, const char* key, const char* file) {
  NIBBLE_ASSIGN_OR_RETURN(const std::int64_t block, base::GetInt(json, key, file));
  const std::string problem = BlockProblem(block);
  if (!problem.empty()) return absl::InvalidArgumentError(StrCat(file, ": \"", key, "\" ", problem));
  return block;
}

}  // namespace

std::string BlockProblem(std::int64_t block) {
  if (kernels::IsNf4Block(block)) return "";
  return StrCat("is ", block, ", wanted a power of two from ", kernels::kNf4SmallestBlock, " to ",
                kernels::kNf4LargestBlock);
}

std::string Describe(const Nf4Options& options) {
  return StrCat("blocks of ", options.block, ", scales in ",
                options.double_quant ? StrCat("int8 in blocks of ", options.scaler_block) : "f32");
}

std::string KeyOf(const Nf4Options& options) {
  if (options == Nf4Options()) return "";
  return StrCat("-b", options.block, options.double_quant ? StrCat("-s", options.scaler_block) : "-f32");
}

base::Json ToJson(const Nf4Options& options) {
  base::Json json = base::Json::object();
  json[kBlock] = options.block;
  json[kDoubleQuant] = options.double_quant;
  if (options.double_quant) json[kScalerBlock] = options.scaler_block;
  return json;
}

absl::StatusOr<Nf4Options> ParseNf4Options(const base::Json& json, const char* file) {
  if (!json.is_object()) return absl::InvalidArgumentError(StrCat(file, ": \"nf4\" is not a JSON object"));
  Nf4Options options;
  for (const auto& [key, value] : json.items()) {
    if (key == kBlock || key == kDoubleQuant || key == kScalerBlock) continue;
    return absl::InvalidArgumentError(StrCat(file, ": \"", key.substr(0, 32), "\" is not an option of nf4"));
  }
  NIBBLE_ASSIGN_OR_RETURN(options.block, GetBlock(json, kBlock, file));
  NIBBLE_ASSIGN_OR_RETURN(options.double_quant, base::GetBool(json, kDoubleQuant, file));
  if (options.double_quant) {
    NIBBLE_ASSIGN_OR_RETURN(options.scaler_block, GetBlock(json, kScalerBlock, file));
  }
  return options;
}

}  // namespace nibble::model
