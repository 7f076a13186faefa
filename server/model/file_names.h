// The names of the files in a model's directory: in our artifacts (server/model/artifact.h), and where they are the
// same, in the directories of Hugging Face that are imported and exported. A name that only one format uses is
// declared beside that format.
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
