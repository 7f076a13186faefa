// Where the rows of a converted dataset file are in the user's file.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace nibble::cli {

// A place is a line, or an element of a JSON array; both count from 1.
class RowPlaces {
 public:
  RowPlaces(std::string file, bool is_array) : file_(std::move(file)), is_array_(is_array) {}

  // Adds the next row. Places ascend. Takes memory only where they are not consecutive.
  void Add(std::int64_t place);
  // The place of a row; rows count from 1. Returns `row` itself if no such row was added.
  std::int64_t Of(std::int64_t row) const;

  // "line 3", "lines 3, 5-6", "element 3": places as text.
  std::string Text(const std::string& places) const;
  // An error at a place: "FILE: line 3: ...", with the reason DATASET_FORMAT.
  absl::Status Bad(std::int64_t place, std::string_view what) const;
  // Replaces the rows in the server's refusal of a converted file ("line 3: ...; lines 5-6, 9: ...") by their places in
  // the user's file. Returns other errors unchanged.
  absl::Status Translated(const absl::Status& refusal) const;

 private:
  std::string TranslatedList(const std::string& rows) const;

  std::string file_;
  bool is_array_;
  std::int64_t num_rows_ = 0;
  std::int64_t last_place_ = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> runs_;  // first row and its place, of rows at consecutive places
};

}  // namespace nibble::cli
