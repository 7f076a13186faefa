#include "server/model/record.h"

#include <algorithm>
#include <cstring>

#include "server/base/error.h"
#include "server/base/sha256.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::model {
namespace {

using base::StrCat;

constexpr std::string_view kMagic("NBLREC1\0", 8);
constexpr std::size_t kDigest = 64;  // bytes: the hex digits of a SHA-256

absl::Status Corrupt(std::string_view what) {
  return base::WithReason(absl::DataLossError(StrCat(kRecordFile, ": ", what)), "CORRUPT_ARTIFACT");
}

void PutU32(std::string& out, std::uint32_t value) {
  for (int i = 0; i < 4; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
}

bool IsHexDigest(std::string_view text) {
  return text.size() == kDigest &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

// Reads from the front; returns false when too few bytes are left or a digest is invalid.
class Cursor {
 public:
  explicit Cursor(std::string_view bytes) : rest_(bytes) {}
  bool U32(std::uint32_t& value) {
    if (rest_.size() < 4) return false;
    value = 0;
    for (std::size_t i = 0; i < 4; ++i)
      value |= static_cast<std::uint32_t>(static_cast<unsigned char>(rest_[i])) << (8 * i);
    rest_.remove_prefix(4);
    return true;
  }
  bool Digest(std::string& digest) {
    if (!IsHexDigest(rest_.substr(0, kDigest))) return false;
    digest = rest_.substr(0, kDigest);
    rest_.remove_prefix(kDigest);
    return true;
  }
  std::size_t size() const { return rest_.size(); }

 private:
  std::string_view rest_;
};

}  // namespace

std::int64_t Record::num_rows() const {
  std::int64_t rows = 0;
  for (const RecordSequence& sequence : sequences) rows += static_cast<std::int64_t>(sequence.row_digests.size());
  return rows;
}

std::string RowDigest(const float* logits, std::int64_t vocab_size) {
  base::Sha256 sha;
  sha.Update(logits, static_cast<std::size_t>(vocab_size) * sizeof(float));
  return sha.HexDigest();
}

std::string SerializeRecord(const Record& record) {
  std::string out(kMagic);
  PutU32(out, static_cast<std::uint32_t>(record.device));
  out += record.weights_digest;
  PutU32(out, static_cast<std::uint32_t>(record.sequences.size()));
  for (const RecordSequence& sequence : record.sequences) {
    PutU32(out, static_cast<std::uint32_t>(sequence.token_ids.size()));
    for (const std::int32_t id : sequence.token_ids) PutU32(out, static_cast<std::uint32_t>(id));
    for (const std::string& digest : sequence.row_digests) out += digest;
  }
  out += base::Sha256Hex(out);
  return out;
}

absl::StatusOr<Record> ParseRecord(std::string_view bytes) {
  if (bytes.size() < kMagic.size() + kDigest || bytes.substr(0, kMagic.size()) != kMagic) {
    return Corrupt("not a record");
  }
  const std::string_view body = bytes.substr(0, bytes.size() - kDigest);
  if (base::Sha256Hex(body) != bytes.substr(body.size())) return Corrupt("checksum does not match");
  Cursor cursor(body.substr(kMagic.size()));
  Record record;
  std::uint32_t device = 0;
  std::uint32_t num_sequences = 0;
  if (!cursor.U32(device) || device > static_cast<std::uint32_t>(kernels::DeviceKind::kCuda)) {
    return Corrupt("unknown device");
  }
  record.device = static_cast<kernels::DeviceKind>(device);
  if (!cursor.Digest(record.weights_digest) || !cursor.U32(num_sequences)) return Corrupt("ends too early");
  for (std::uint32_t i = 0; i < num_sequences; ++i) {
    std::uint32_t num_tokens = 0;
    if (!cursor.U32(num_tokens) || num_tokens > cursor.size() / (4 + kDigest)) return Corrupt("ends too early");
    RecordSequence sequence;
    for (std::uint32_t t = 0; t < num_tokens; ++t) {
      std::uint32_t id = 0;
      if (!cursor.U32(id) || id > INT32_MAX) return Corrupt("invalid token id");
      sequence.token_ids.push_back(static_cast<std::int32_t>(id));
    }
    for (std::uint32_t t = 0; t < num_tokens; ++t) {
      std::string digest;
      if (!cursor.Digest(digest)) return Corrupt("invalid digest");
      sequence.row_digests.push_back(std::move(digest));
    }
    record.sequences.push_back(std::move(sequence));
  }
  if (cursor.size() != 0) return Corrupt("bytes after its end");
  return record;
}

absl::Status WriteRecord(base::FileSystem& files, const std::string& directory, const Record& record) {
  if (!IsHexDigest(record.weights_digest)) return absl::InternalError("record has no digest of its weights");
  for (const RecordSequence& sequence : record.sequences) {
    if (sequence.token_ids.size() != sequence.row_digests.size()) {
      return absl::InternalError("record has tokens without rows");
    }
  }
  return base::WriteFileAtomically(files, base::JoinPath(directory, kRecordFile), SerializeRecord(record));
}

absl::StatusOr<Record> ReadRecord(base::FileSystem& files, const std::string& directory) {
  const std::string path = base::JoinPath(directory, kRecordFile);
  if (!files.Exists(path)) {
    return base::WithReason(absl::FailedPreconditionError("the model has no record to verify against"), "NO_RECORD");
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::string bytes, files.Read(path, kMaxRecordBytes));
  return ParseRecord(bytes);
}

}  // namespace nibble::model
