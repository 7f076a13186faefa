// Uploads a file of rows, and shows the first two as training would see them, with the trained tokens in [ ].
//   example_upload_and_preview HOST:PORT FILE.jsonl DATASET MODEL
#include <iostream>
#include <string>

#include "client/client.h"

namespace {

namespace v1 = nibble::v1;

absl::Status Run(const std::string& server, const std::string& file, const std::string& dataset,
                 const std::string& model) {
  auto client = nibble::client::Client::Connect(server, {});

  v1::UploadDatasetHeader header;
  header.set_name(dataset);
  const auto show = [](const std::string&, std::int64_t done, std::int64_t total) {
    std::cerr << "uploaded " << done << " of " << total << " bytes\n";
  };
  const auto uploaded = client.UploadDataset(file, header, show);
  if (!uploaded.ok()) return uploaded.status();
  std::cout << uploaded->name() << ": " << uploaded->rows() << " rows\n";

  v1::PreviewDatasetRequest request;
  request.set_dataset(dataset);
  request.set_model(model);  // its tokenizer and its chat template
  request.set_n(2);
  const auto preview = client.LongCall(&v1::DatasetService::Stub::PreviewDataset, request);
  if (!preview.ok()) return preview.status();
  for (const v1::PreviewRow& row : preview->rows()) {
    std::cout << "row " << row.row() << ':';
    for (int i = 0; i < row.token_texts_size() && i < row.trained_size(); ++i) {
      const std::string& token = row.token_texts(i);
      std::cout << ' ' << (row.trained(i) ? "[" + token + "]" : token);
    }
    std::cout << '\n';
  }
  for (const v1::RowWarning& warning : preview->warnings()) std::cout << "warning: " << warning.message() << '\n';
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: example_upload_and_preview HOST:PORT FILE.jsonl DATASET MODEL\n";
    return 2;
  }
  const absl::Status status = Run(argv[1], argv[2], argv[3], argv[4]);
  if (!status.ok()) std::cerr << status << '\n';
  return status.ok() ? 0 : 1;
}
