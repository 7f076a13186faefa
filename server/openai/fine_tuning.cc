#include "server/openai/fine_tuning.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "server/base/error.h"
#include "server/base/strings.h"
#include "server/openai/fine_tuning_answer.h"
#include "server/openai/fine_tuning_request.h"
#include "server/openai/query_fields.h"
#include "server/openai/unary_exchange.h"

namespace nibble::openai {

namespace {

using base::Json;

constexpr std::int64_t kMaxPage = 1000;  // as in the gRPC API
constexpr std::int64_t kJobsPerPage = 20;
constexpr std::int64_t kCheckpointsPerPage = 10;
// A page that has reached this size ends before `limit`, with has_more.
constexpr std::size_t kMaxPageBytes = 4 << 20;

void Refuse(const std::shared_ptr<Incoming>& incoming, const absl::Status& status) {
  incoming->exchange->Answer(ToReply(FromStatus(status)));
}

// The answer of a list request, which takes one or more calls.
struct PartialList {
  std::size_t limit = 0;
  Json data = Json::array();
  std::size_t bytes = 0;  // of the messages in `data`

  bool full() const { return data.size() >= limit || (bytes >= kMaxPageBytes && !data.empty()); }
  void Answer(const std::shared_ptr<Incoming>& incoming, bool has_more) {
    const auto id = [](const Json& row) { return row["id"]; };
    Json json = {{"object", "list"},
                 {"first_id", data.empty() ? Json(nullptr) : id(data.front())},
                 {"last_id", data.empty() ? Json(nullptr) : id(data.back())},
                 {"has_more", has_more}};
    json["data"] = std::move(data);
    incoming->exchange->Answer(JsonReply(base::Dump(json)));
  }
};

template <typename Request>
Request Named(const std::string& job) {
  Request request;
  request.set_name(job);
  return request;
}

void AnswerJob(const std::shared_ptr<Incoming>& incoming, v1::Job& job) {
  incoming->exchange->Answer(JsonReply(base::Dump(JobJson(job))));
}

void ListJobs(std::shared_ptr<Incoming> incoming, v1::ListJobsRequest request, const std::shared_ptr<PartialList>& page,
              const Stubs& stubs) {
  request.set_page_size(static_cast<std::int32_t>(page->limit - page->data.size()));
  auto next = request;
  CallUnary<v1::ListJobsResponse>(
      std::move(incoming), std::move(request),
      [&stubs](auto... arguments) { stubs.fine_tuning->async()->ListJobs(arguments...); },
      [&stubs, page, next](const std::shared_ptr<Incoming>& again, v1::ListJobsResponse& response) mutable {
        for (const v1::Job& job : response.jobs()) page->data.push_back(JobJson(job));
        page->bytes += response.ByteSizeLong();
        const std::string& token = response.next_page_token();
        if (token.empty() || page->full()) return page->Answer(again, !token.empty());
        next.clear_created_before();
        next.set_page_token(token);
        ListJobs(again, std::move(next), page, stubs);
      },
      [](const grpc::Status& status) {
        ApiError error = FromStatus(status);
        if (error.code == kJobNotFound) error.param = "after";
        return error;
      });
}

void ListEvents(std::shared_ptr<Incoming> incoming, v1::ListJobEventsRequest request,
                const std::shared_ptr<PartialList>& page, const Stubs& stubs) {
  request.set_page_size(static_cast<std::int32_t>(page->limit - page->data.size()));
  auto next = request;
  CallUnary<v1::ListJobEventsResponse>(
      std::move(incoming), std::move(request),
      [&stubs](auto... arguments) { stubs.fine_tuning->async()->ListJobEvents(arguments...); },
      [&stubs, page, next](const std::shared_ptr<Incoming>& again, v1::ListJobEventsResponse& response) mutable {
        for (const v1::JobEvent& event : response.events()) page->data.push_back(EventJson(next.name(), event));
        page->bytes += response.ByteSizeLong();
        const std::string& token = response.next_page_token();
        if (token.empty() || page->full()) return page->Answer(again, !token.empty());
        next.set_page_token(token);
        ListEvents(again, std::move(next), page, stubs);
      });
}

// `after_step`: the page begins with the checkpoints of lower steps. A job keeps so few checkpoints that the calls may
// list those before it too.
void ListCheckpoints(std::shared_ptr<Incoming> incoming, v1::ListCheckpointsRequest request,
                     std::optional<std::int64_t> after_step, const std::shared_ptr<PartialList>& page,
                     const Stubs& stubs) {
  request.set_page_size(kMaxPage);
  auto next = request;
  CallUnary<v1::ListCheckpointsResponse>(
      std::move(incoming), std::move(request),
      [&stubs](auto... arguments) { stubs.fine_tuning->async()->ListCheckpoints(arguments...); },
      [&stubs, page, next, after_step](const std::shared_ptr<Incoming>& again,
                                       v1::ListCheckpointsResponse& response) mutable {
        for (const v1::Checkpoint& checkpoint : response.checkpoints()) {
          if (after_step.has_value() && checkpoint.step() >= *after_step) continue;
          if (page->full()) return page->Answer(again, /*has_more=*/true);
          page->data.push_back(CheckpointJson(checkpoint));
          page->bytes += checkpoint.ByteSizeLong();
        }
        if (response.next_page_token().empty()) return page->Answer(again, /*has_more=*/false);
        next.set_page_token(response.next_page_token());
        ListCheckpoints(again, std::move(next), after_step, page, stubs);
      });
}

std::shared_ptr<PartialList> PageOf(std::int64_t limit) {
  auto page = std::make_shared<PartialList>();
  page->limit = static_cast<std::size_t>(limit);
  return page;
}

}  // namespace

void CreateFineTuningJob(std::shared_ptr<Incoming> incoming, const Json& body, const Stubs& stubs) {
  auto call = ParseFineTuningJob(body, incoming->exchange->head().Field("idempotency-key"));
  if (!call.ok()) return Refuse(incoming, call.status());
  auto request = call->request;
  CallUnary<v1::Job>(
      std::move(incoming), std::move(request),
      [&stubs](auto... arguments) { stubs.fine_tuning->async()->CreateJob(arguments...); }, AnswerJob,
      [call = *std::move(call)](const grpc::Status& status) {
        ApiError error = FromStatus(status, [&](std::string_view field) { return call.ClientField(field); });
        const v1::JobSpec& spec = call.request.spec();
        if (error.code == kFileNotFound)
          error.param = call.ClientField(error.object == spec.train_dataset() ? "train_dataset" : "eval_dataset");
        return error;
      });
}

void GetFineTuningJob(std::shared_ptr<Incoming> incoming, const std::string& job, const Stubs& stubs) {
  CallUnary<v1::Job>(
      std::move(incoming), Named<v1::GetJobRequest>(job),
      [&stubs](auto... arguments) { stubs.fine_tuning->async()->GetJob(arguments...); }, AnswerJob);
}

void CancelFineTuningJob(std::shared_ptr<Incoming> incoming, const std::string& job, const Stubs& stubs) {
  CallUnary<v1::Job>(
      std::move(incoming), Named<v1::CancelJobRequest>(job),
      [&stubs](auto... arguments) { stubs.fine_tuning->async()->CancelJob(arguments...); }, AnswerJob);
}

void PauseFineTuningJob(std::shared_ptr<Incoming> incoming, const std::string& job, const Stubs& stubs) {
  CallUnary<v1::Job>(
      std::move(incoming), Named<v1::PauseJobRequest>(job),
      [&stubs](auto... arguments) { stubs.fine_tuning->async()->PauseJob(arguments...); }, AnswerJob);
}

void ResumeFineTuningJob(std::shared_ptr<Incoming> incoming, const std::string& job, const Stubs& stubs) {
  CallUnary<v1::Job>(
      std::move(incoming), Named<v1::ResumeJobRequest>(job),
      [&stubs](auto... arguments) { stubs.fine_tuning->async()->ResumeJob(arguments...); }, AnswerJob);
}

void ListFineTuningJobs(std::shared_ptr<Incoming> incoming, const Stubs& stubs) {
  QueryFields query(incoming->exchange->head().query);
  v1::ListJobsRequest request;
  if (const auto after = query.Text("after")) request.set_created_before(*after);
  const auto page = PageOf(query.Int("limit", 1, kMaxPage).value_or(kJobsPerPage));
  for (auto& [key, value] : query.Map("metadata")) (*request.mutable_filter()->mutable_labels())[key] = value;
  if (const absl::Status status = query.Finish(); !status.ok()) return Refuse(incoming, status);
  ListJobs(std::move(incoming), std::move(request), page, stubs);
}

void ListFineTuningEvents(std::shared_ptr<Incoming> incoming, const std::string& job, const Stubs& stubs) {
  QueryFields query(incoming->exchange->head().query);
  auto request = Named<v1::ListJobEventsRequest>(job);
  request.set_newest_first(true);
  if (const auto after = query.Text("after")) {
    const auto sequence = SequenceOf(*after, job);
    if (!sequence.has_value()) query.Fail("after", "is not the id of an event of this job");
    request.set_before_sequence(sequence.value_or(0));
  }
  const auto page = PageOf(query.Int("limit", 1, kMaxPage).value_or(kJobsPerPage));
  if (const absl::Status status = query.Finish(); !status.ok()) return Refuse(incoming, status);
  ListEvents(std::move(incoming), std::move(request), page, stubs);
}

void ListFineTuningCheckpoints(std::shared_ptr<Incoming> incoming, const std::string& job, const Stubs& stubs) {
  QueryFields query(incoming->exchange->head().query);
  std::optional<std::int64_t> after_step;
  if (const auto after = query.Text("after")) {
    after_step = StepOf(*after, job);
    if (!after_step.has_value()) query.Fail("after", "is not the id of a checkpoint of this job");
  }
  const auto page = PageOf(query.Int("limit", 1, kMaxPage).value_or(kCheckpointsPerPage));
  if (const absl::Status status = query.Finish(); !status.ok()) return Refuse(incoming, status);
  ListCheckpoints(std::move(incoming), Named<v1::ListCheckpointsRequest>(job), after_step, page, stubs);
}

}  // namespace nibble::openai
