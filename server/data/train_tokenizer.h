// Trains a tokenizer on the rows of a dataset.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "server/base/cancelled.h"
#include "server/data/row.h"

namespace nibble::data {

// Peak memory in bytes, without mapped pages, for a data file of this size. At most 2 GiB and 1 KiB per token of the
// vocabulary.
std::int64_t TrainTokenizerBytes(std::uint64_t file_bytes, std::int64_t vocab_size);

// Trains on all texts, prompts, completions and contents of messages in the file, without a chat template
// (text/tokenizer_trainer.h), and returns the text of a tokenizer.json. After the first 8 Mi letters (bytes) of
// different words, new words do not count. `progress` gets the number of bytes read. Errors: InvalidArgument
// (vocab_size; DATASET_FORMAT with the line), Cancelled, those of the file system.
absl::StatusOr<std::string> TrainTokenizer(const std::string& data_path, RowFormat format,
                                           std::span<const std::string> special_tokens, std::int64_t vocab_size,
                                           const base::Cancelled& cancelled,
                                           const std::function<void(std::int64_t bytes)>& progress);

}  // namespace nibble::data
