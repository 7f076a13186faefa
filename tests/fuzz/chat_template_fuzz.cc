// F8: a chat template, and after the last NUL byte (if there is one) the messages as JSON. An input that begins with {"
// is also read as a whole tokenizer_config.json. Templates are untrusted programs: they must end in time, within their
// memory, and with a status.
#include <filesystem>
#include <fstream>
#include <string>

#include "server/model/text_assets.h"
#include "server/text/chat_template.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/temp_directory.h"

using nibble::fuzz::Expect;
using nibble::fuzz::ExpectClean;

namespace {

// The input as the tokenizer_config.json with the template, next to a valid tokenizer.json.
void FuzzConfig(std::string_view json) {
  static const nibble::testing::TempDirectory directory;
  std::error_code ignored;
  std::filesystem::create_symlink(NIBBLE_SOURCE_DIR "/tests/golden/model/hf_tied_bf16/tokenizer.json",
                                  directory / "tokenizer.json", ignored);
  std::ofstream(directory / "tokenizer_config.json", std::ios::binary)
      .write(json.data(), static_cast<std::streamsize>(json.size()));
  ExpectClean(nibble::model::LoadTextAssets(directory.path()).status(), json);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input = nibble::fuzz::Text(data, size);
  std::string_view source = input;
  if (source.starts_with("{\"")) FuzzConfig(source);
  std::string_view messages = R"([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi \u00e9"},
                                  {"role": "assistant", "content": null, "tool_calls": [{"id": 7}]}])";
  if (const std::size_t nul = source.rfind('\0'); nul != std::string_view::npos) {
    messages = source.substr(nul + 1);
    source = source.substr(0, nul);
  }
  const auto chat = nibble::text::ChatTemplate::Compile(source, {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
  if (!chat.ok()) {
    Expect(!chat.status().message().empty(), "a refusal says why");
    ExpectClean(chat.status(), input);
    return 0;
  }
  nibble::text::RenderOptions options;
  options.add_generation_prompt = size % 2 == 0;
  options.now_unix_seconds = 1700000000;
  const auto first = (*chat)->RenderJson(messages, options);
  ExpectClean(first.status(), input);
  const auto second = (*chat)->RenderJson(messages, options);
  Expect(first.ok() == second.ok() && (!first.ok() || *first == *second), "a template renders the same twice");
  const auto turns = (*chat)->RenderTurns(messages, options);
  ExpectClean(turns.status(), input);
  Expect(first.ok() == turns.ok() && (!first.ok() || *first == turns->text), "RenderTurns gives the same text");
  if (!turns.ok()) return 0;
  Expect(turns->unknown.empty() || (turns->turns.empty() && turns->generation.empty()), "unknown turns have no parts");
  for (const auto& parts : {turns->turns, turns->generation}) {
    for (const auto& part : parts)
      Expect(part.begin <= part.end && part.end <= turns->text.size(), "turns are inside the text");
  }
  return 0;
}
