// Training files in the formats of other tools, converted to the JSON lines of a dataset.
#pragma once
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "client/cli/row_places.h"

namespace nibble::cli {

// A temporary file, removed with the object.
class ConvertedFile {
 public:
  ConvertedFile(std::string path, RowPlaces places) : path_(std::move(path)), places_(std::move(places)) {}
  ConvertedFile(ConvertedFile&& other) noexcept
      : path_(std::exchange(other.path_, "")), places_(std::move(other.places_)) {}
  ConvertedFile& operator=(ConvertedFile&&) = delete;
  ~ConvertedFile();
  const std::string& path() const { return path_; }
  // Where its lines come from.
  RowPlaces& places() { return places_; }
  const RowPlaces& places() const { return places_; }

 private:
  std::string path_;
  RowPlaces places_;
};

// Whether ToJsonLines converts files of this format.
bool IsForeignFormat(const std::string& format);

// Converts a file: `format` is "json" (rows of a dataset), "csv" (columns text, or prompt and completion, or those of
// alpaca), "alpaca" (system, instruction, input, output) or "sharegpt" (conversations). All but csv may be an array or
// one object after the other. The rows of alpaca and sharegpt become chats. The same file gives the same bytes, so an
// upload can be resumed. Maps the file and holds one row in memory. InvalidArgument (DATASET_FORMAT) names the file
// and the line or element if one row is wrong, and neither for an error of the whole file. NotFound (FILE): `path`
// cannot be read; ResourceExhausted (FILE): the rows cannot be written.
absl::StatusOr<ConvertedFile> ToJsonLines(const std::string& path, const std::string& format);

// InvalidArgument (DATASET_FORMAT) if the file looks like one that needs --format; the message names the values.
absl::Status CheckIsJsonLines(const std::string& path);

}  // namespace nibble::cli
