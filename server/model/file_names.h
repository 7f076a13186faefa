// Names of files in a model's directory. Artifacts (server/model/artifact.h) use all of these names. Hugging Face
// directories that are imported or exported use all except nibble.json. Names of other files are declared beside the
// code that reads or writes them.
#pragma once

namespace nibble::model {

inline constexpr char kInfoFile[] = "nibble.json";
inline constexpr char kConfigFile[] = "config.json";
inline constexpr char kGenerationConfigFile[] = "generation_config.json";
inline constexpr char kTokenizerFile[] = "tokenizer.json";
inline constexpr char kTokenizerConfigFile[] = "tokenizer_config.json";
inline constexpr char kChatTemplateFile[] = "chat_template.jinja";
inline constexpr char kWeightsFile[] = "model.safetensors";

}  // namespace nibble::model
