// record.bin: digests of the logits of a model whose logits are promised to be exact (docs/glossary.md: promise). They
// are stored when the model is made; `models verify` computes the logits again and compares (docs/numerics.md 10).
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "server/base/files.h"

namespace nibble::model {

inline constexpr char kRecordFile[] = "record.bin";
// Maximum bytes of a record that is read.
inline constexpr std::uint64_t kMaxRecordBytes = 64 << 20;

// Token ids of one sequence, and for each position the SHA-256 of its logits: vocab_size f32, little-endian, as in
// memory. Row i is computed from tokens 0..i.
struct RecordSequence {
  std::vector<std::int32_t> token_ids;
  std::vector<std::string> row_digests;  // 64 lower-case hex digits each
};

struct Record {
  kernels::DeviceKind device = kernels::DeviceKind::kCpu;  // equal bits are promised only on this kind
  std::string weights_digest;                              // of the artifact that gave the logits
  std::vector<RecordSequence> sequences;

  std::int64_t num_rows() const;
};

// The digest of one row of logits.
std::string RowDigest(const float* logits, std::int64_t vocab_size);

// Little-endian: "NBLREC1\0", u32 device, 64 hex digits of the weights, u32 number of sequences; for each sequence u32
// number of tokens, i32 ids, 64 hex digits per row; at the end 64 hex digits: the SHA-256 of all bytes before.
std::string SerializeRecord(const Record& record);
// DataLoss (CORRUPT_ARTIFACT) if the bytes are not a whole record with a matching checksum.
absl::StatusOr<Record> ParseRecord(std::string_view bytes);

absl::Status WriteRecord(base::FileSystem& files, const std::string& directory, const Record& record);
// FailedPrecondition (reason NO_RECORD) when the artifact has none.
absl::StatusOr<Record> ReadRecord(base::FileSystem& files, const std::string& directory);

}  // namespace nibble::model
