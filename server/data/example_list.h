// A list of examples: in memory, in a mapped token file, or only their lengths.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace nibble::data {

struct Example {
  std::vector<std::int32_t> tokens;
  std::vector<std::uint8_t> trained;  // 1: the loss of predicting this token counts. The first is never predicted
  std::int64_t num_cut_off = 0;       // tokens that the row had beyond these (kTruncate)
  bool boundary_merged = false;       // a trained token also covers text that is not trained
  bool began_with_added = false;      // the text begins with the special token that the tokenizer adds: not added again
  std::int64_t line = 0;              // of the data file, from 1; 0: not from a file
  std::int64_t num_trained() const;
};

struct ExampleLength {
  std::uint32_t num_tokens = 0;
  std::uint32_t num_trained = 0;
  std::int64_t line = 0;  // Example::line
};

class TokenFile;

// Copies share the examples, which never change. Thread-safe.
class ExampleList {
 public:
  ExampleList() = default;
  ExampleList(std::vector<Example> examples);  // NOLINT(google-explicit-constructor): a vector is a list in memory
  explicit ExampleList(std::shared_ptr<const TokenFile> file) : file_(std::move(file)) {}
  explicit ExampleList(std::vector<ExampleLength> lengths);

  std::size_t size() const;
  bool has_tokens() const { return lengths_ == nullptr; }
  Example operator[](std::size_t i) const;  // a copy; requires has_tokens()
  // The examples `indices`, which must be below size(), in this order.
  ExampleList Select(std::vector<std::uint32_t> indices) const;
  // Without reading the tokens of a file.
  std::int64_t num_tokens(std::size_t i) const;
  std::int64_t num_trained(std::size_t i) const;
  std::int64_t line(std::size_t i) const;  // Example::line

 private:
  std::size_t At(std::size_t i) const { return selected_ != nullptr ? (*selected_)[i] : i; }

  std::shared_ptr<const std::vector<Example>> memory_;
  std::shared_ptr<const TokenFile> file_;
  std::shared_ptr<const std::vector<ExampleLength>> lengths_;
  std::shared_ptr<const std::vector<std::uint32_t>> selected_;  // null: all of the list above
};

}  // namespace nibble::data
