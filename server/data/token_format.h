// The bytes of a token file, for its writer and its reader. Little-endian.
//   header   TokenHeader
//   tokens   u32 each: the id, and kTrainedBit if the loss of predicting the token counts; padded to 8 bytes with zeros
//   index    TokenIndexEntry each
//   summary  JSON: counts, lines of rows, SHA-256 of tokens and index
//   trailer  TokenTrailer
#pragma once
#include <cstdint>

#include "server/base/json.h"
#include "server/data/token_file.h"

namespace nibble::data {

struct TokenHeader {
  char magic[8];  // "NBLTOKEN"
  std::uint32_t version;
  std::uint32_t reserved;
  char key[64];
};
static_assert(sizeof(TokenHeader) == 80);

struct TokenTrailer {
  std::uint64_t summary_bytes;
  char summary_sha256[64];
  char magic[8];  // "NBLTOKND"; a file without it is unfinished
};
static_assert(sizeof(TokenTrailer) == 80);

inline constexpr char kTokenMagic[] = "NBLTOKEN";
inline constexpr char kTokenEndMagic[] = "NBLTOKND";
inline constexpr std::uint32_t kTrainedBit = 0x80000000u;

base::Json SummaryJson(const DataSummary& summary);

}  // namespace nibble::data
