#include "server/openai/files.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/base/strings.h"
#include "server/openai/query_fields.h"
#include "server/openai/unary_exchange.h"

namespace nibble::openai {

namespace {

using base::Json;
using base::StrCat;

constexpr std::int64_t kMaxFiles = 10'000;  // of a page, as in OpenAI's API
constexpr std::int32_t kDatasetsPerCall = 1000;

struct FileQuery {
  std::size_t limit = kMaxFiles;
  bool ascending = false;
  bool none = false;  // another purpose
  std::string after;  // id of the last file of the previous page; "": the first page
};

absl::StatusOr<FileQuery> ParseFileQuery(std::string_view text) {
  QueryFields fields(text);
  FileQuery query;
  query.after = fields.Text("after").value_or("");
  query.limit = static_cast<std::size_t>(fields.Int("limit", 1, kMaxFiles).value_or(kMaxFiles));
  query.none = fields.Text("purpose").value_or(kFilePurpose) != kFilePurpose;
  query.ascending = fields.Ascending();
  if (const absl::Status status = fields.Finish(); !status.ok()) return status;
  return query;
}

// Damaged datasets have no time, so they count as the oldest.
auto AgeOf(const v1::Dataset& one) {
  return std::tuple(one.create_time().seconds(), one.create_time().nanos(), one.name());
}

http::Reply FilePage(std::vector<v1::Dataset> all, const FileQuery& query) {
  if (query.none) all.clear();
  std::sort(all.begin(), all.end(), [&](const v1::Dataset& a, const v1::Dataset& b) {
    return query.ascending ? AgeOf(a) < AgeOf(b) : AgeOf(b) < AgeOf(a);
  });
  auto begin = all.begin();
  if (!query.after.empty() && !query.none) {
    begin = std::find_if(all.begin(), all.end(), [&](const v1::Dataset& one) { return one.name() == query.after; });
    if (begin == all.end()) {
      return ToReply({.status = 404,
                      .type = "not_found_error",
                      .message = StrCat("after: there is no file \"", query.after, "\"; list from the beginning"),
                      .param = "after",
                      .code = kFileNotFound});
    }
    ++begin;
  }
  const auto end =
      begin + static_cast<std::ptrdiff_t>(std::min(query.limit, static_cast<std::size_t>(all.end() - begin)));
  Json data = Json::array();
  for (auto it = begin; it != end; ++it) data.push_back(FileJson(*it));
  Json json = {{"object", "list"},
               {"first_id", begin == end ? Json(nullptr) : Json(begin->name())},
               {"last_id", begin == end ? Json(nullptr) : Json((end - 1)->name())},
               {"has_more", end != all.end()}};
  json["data"] = std::move(data);
  return JsonReply(base::Dump(json));
}

// The gRPC API lists datasets by name, OpenAI's API by age: so a page needs all.
void ListFilesFrom(std::shared_ptr<Incoming> incoming, const Stubs& stubs, const std::string& page_token,
                   const std::shared_ptr<std::vector<v1::Dataset>>& all, const FileQuery& query) {
  v1::ListDatasetsRequest request;
  request.set_page_size(kDatasetsPerCall);
  request.set_page_token(page_token);
  CallUnary<v1::ListDatasetsResponse>(
      std::move(incoming), std::move(request),
      [&stubs](auto... arguments) { stubs.datasets->async()->ListDatasets(arguments...); },
      [&stubs, all, query](const std::shared_ptr<Incoming>& again, v1::ListDatasetsResponse& page) {
        for (v1::Dataset& one : *page.mutable_datasets()) {
          one.clear_warnings();
          all->push_back(std::move(one));
        }
        if (!page.next_page_token().empty()) return ListFilesFrom(again, stubs, page.next_page_token(), all, query);
        again->exchange->Answer(FilePage(std::move(*all), query));
      });
}

// Sends a file as fast as its client reads. gRPC calls the functions of a reactor one after another; it lives until
// OnDone.
class FileDownload final : public grpc::ClientReadReactor<v1::DownloadDatasetResponse>,
                           public std::enable_shared_from_this<FileDownload> {
 public:
  explicit FileDownload(std::shared_ptr<Incoming> incoming) : incoming_(std::move(incoming)) {}

  void Begin(const std::string& id, const Stubs& stubs) {
    self_ = shared_from_this();
    request_.set_name(id);
    incoming_->identity.AddTo(context_);
    exchange().Stream({{"Content-Type", "application/octet-stream"}, {"X-Content-Type-Options", "nosniff"}}, "");
    exchange().Watch(
        [weak = weak_from_this()] {
          if (const auto self = weak.lock()) self->Resume();
        },
        [weak = weak_from_this()] {
          if (const auto self = weak.lock()) self->ClientGone();
        });
    stubs.datasets->async()->DownloadDataset(&context_, &request_, this);
    AddHold();  // Resume() starts reads from another thread
    StartRead(&response_);
    StartCall();
  }

 private:
  http::Exchange& exchange() const { return *incoming_->exchange; }

  void OnReadDone(bool ok) override {
    if (!ok) return RemoveHold();
    if (exchange().Write(response_.chunk())) return StartRead(&response_);
    paused_ = true;
    if (exchange().Write("")) Resume();  // the client took the bytes meanwhile, or has gone
  }
  void ClientGone() {
    context_.TryCancel();
    Resume();  // the read fails and ends the call
  }
  void Resume() {
    if (paused_.exchange(false)) StartRead(&response_);
  }
  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<FileDownload> last = std::move(self_);  // may destroy this object
    if (status.ok()) return exchange().End();
    exchange().Fail(ToReply(FromStatus(status)), /*tail=*/std::nullopt);
  }

  const std::shared_ptr<Incoming> incoming_;
  grpc::ClientContext context_;
  v1::DownloadDatasetRequest request_;
  v1::DownloadDatasetResponse response_;
  std::atomic<bool> paused_{false};
  std::shared_ptr<FileDownload> self_;  // until OnDone
};

}  // namespace

Json FileJson(const v1::Dataset& dataset) {
  Json json = {
      {"id", dataset.name()},     {"object", "file"},
      {"bytes", dataset.bytes()}, {"created_at", dataset.create_time().seconds()},
      {"expires_at", nullptr},    {"filename", dataset.file_name().empty() ? dataset.name() : dataset.file_name()},
      {"purpose", kFilePurpose},  {"status", dataset.damaged() ? "error" : "processed"},
      {"status_details", nullptr}};
  if (dataset.damaged()) json["status_details"] = "the files of the dataset are damaged";
  return json;
}

void ListFiles(std::shared_ptr<Incoming> incoming, const Stubs& stubs) {
  const auto query = ParseFileQuery(incoming->exchange->head().query);
  if (!query.ok()) return incoming->exchange->Answer(ToReply(FromStatus(query.status())));
  ListFilesFrom(std::move(incoming), stubs, "", std::make_shared<std::vector<v1::Dataset>>(), *query);
}

void GetFile(std::shared_ptr<Incoming> incoming, const std::string& id, const Stubs& stubs) {
  v1::GetDatasetRequest request;
  request.set_name(id);
  CallUnary<v1::Dataset>(
      std::move(incoming), std::move(request),
      [&stubs](auto... arguments) { stubs.datasets->async()->GetDataset(arguments...); },
      [](const std::shared_ptr<Incoming>& again, v1::Dataset& dataset) {
        again->exchange->Answer(JsonReply(base::Dump(FileJson(dataset))));
      });
}

void GetFileContent(std::shared_ptr<Incoming> incoming, const std::string& id, const Stubs& stubs) {
  std::make_shared<FileDownload>(std::move(incoming))->Begin(id, stubs);
}

void DeleteFile(std::shared_ptr<Incoming> incoming, const std::string& id, const Stubs& stubs) {
  v1::DeleteDatasetRequest request;
  request.set_name(id);
  CallUnary<v1::DeleteDatasetResponse>(
      std::move(incoming), std::move(request),
      [&stubs](auto... arguments) { stubs.datasets->async()->DeleteDataset(arguments...); },
      [id](const std::shared_ptr<Incoming>& again, v1::DeleteDatasetResponse&) {
        again->exchange->Answer(JsonReply(base::Dump({{"id", id}, {"object", "file"}, {"deleted", true}})));
      });
}

}  // namespace nibble::openai
