// F3: JSON text, above all its depth; a document is unchanged after writing and reading. Also config.json, whose
// numbers become sizes.
#include <algorithm>

#include "server/base/json.h"
#include "server/model/model_config.h"
#include "tests/fuzz/fuzz.h"

using nibble::fuzz::Expect;
using nibble::fuzz::ExpectClean;

namespace {

int Depth(const nibble::base::Json& json) {
  int deepest = 0;
  if (!json.is_structured()) return 0;
  for (const auto& item : json) deepest = std::max(deepest, Depth(item));
  return deepest + 1;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input = nibble::fuzz::Text(data, size);
  const auto json = nibble::base::ParseJson(input);
  ExpectClean(json.status(), input);
  if (!json.ok()) return 0;
  Expect(Depth(*json) <= nibble::base::kMaxJsonDepth, "an accepted document is not too deep");
  const std::string text = nibble::base::Dump(*json);
  const auto again = nibble::base::ParseJson(text);
  Expect(again.ok() && nibble::base::Dump(*again) == text, "written JSON reads the same");
  Expect(!nibble::base::Dump(*json, 1).empty(), "the form for people is not empty");
  for (const char* key : {"hidden_size", "rope_theta", "model_type", "tie_word_embeddings"}) {
    ExpectClean(nibble::base::GetInt(*json, key, "input").status(), input);
    ExpectClean(nibble::base::GetNumber(*json, key, "input", 1.0).status(), input);
    ExpectClean(nibble::base::GetString(*json, key, "input", "absent").status(), input);
    ExpectClean(nibble::base::GetBool(*json, key, "input", true).status(), input);
  }
  const auto config = nibble::model::ParseHfConfig(*json);
  ExpectClean(config.status(), input);
  if (!config.ok()) return 0;
  Expect(config->hidden_size > 0 && config->num_layers > 0 && config->head_dim > 0 && config->num_kv_heads > 0 &&
             config->vocab_size > 0 && config->num_heads % config->num_kv_heads == 0,
         "a config's sizes can be computed with");
  Expect(static_cast<std::int64_t>(nibble::model::RopeInverseFrequencies(*config).size()) == config->head_dim / 2,
         "half a head of frequencies");
  Expect(nibble::model::ParseHfConfig(nibble::model::ToHfConfig(*config)).ok(), "a written config can be read");
  return 0;
}
