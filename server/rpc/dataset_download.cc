// DownloadDataset. Implements SendDataset of dataset_proto.h.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "server/base/status_macros.h"
#include "server/base/worker_pool.h"
#include "server/rpc/dataset_proto.h"
#include "server/store/name_table.h"

namespace nibble::rpc {

namespace {

constexpr std::uint64_t kPieceBytes = 256 << 10;
// Maximum pieces that one Fill() pushes. Nearly twice as many may wait: if the reader empties the queue during a
// Fill(), another Fill() follows.
constexpr std::size_t kPiecesAhead = 16;
// For --min_read_rate, 64 KiB of a download count as one message of an answer.
constexpr double kPiecesPerMessage = (64 << 10) / static_cast<double>(kPieceBytes);

// One download. The stream calls Fill() again when the reader has taken the pieces.
class Download : public std::enable_shared_from_this<Download> {
 public:
  using Stream = StreamReactor<v1::DownloadDatasetResponse>;
  Download(std::shared_ptr<Stream> stream, const store::StoredDataset& stored)
      : stream_(std::move(stream)),
        name_(stored.name),
        file_(stored.data_path, std::ios::binary),  // stays readable if the dataset is deleted
        left_(stored.bytes) {}

  void Begin() {
    auto pump = std::make_shared<base::Pump>(stream_->call().environment().workers,
                                             [self = shared_from_this()] { self->Fill(); });
    stream_->OnSpace([pump] { pump->Wake(); });
    pump->Wake();
    stream_->WatchReader(kPiecesPerMessage * stream_->call().environment().min_read_rate);
  }

 private:
  void Fill() {
    for (std::size_t i = 0; i < kPiecesAhead && left_ > 0 && stream_->space() > 0; ++i) {
      std::string piece(static_cast<std::size_t>(std::min(left_, kPieceBytes)), '\0');
      if (!file_.read(piece.data(), static_cast<std::streamsize>(piece.size())))
        return stream_->End(store::DamagedError("dataset", name_));
      left_ -= piece.size();
      v1::DownloadDatasetResponse message;
      message.set_chunk(std::move(piece));
      if (!stream_->Push(message)) return;  // the stream has ended
    }
    if (left_ == 0) stream_->End(absl::OkStatus());
  }

  const std::shared_ptr<Stream> stream_;
  const std::string name_;
  std::ifstream file_;
  std::uint64_t left_;  // bytes of the file
};

}  // namespace

void SendDataset(std::shared_ptr<StreamReactor<v1::DownloadDatasetResponse>> stream,
                 const store::StoredDataset& stored) {
  std::make_shared<Download>(std::move(stream), stored)->Begin();
}

}  // namespace nibble::rpc
