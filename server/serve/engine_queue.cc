// Engine: decides which requests are accepted and which begin.
#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/serve/sequence.h"

namespace nibble::serve {

namespace {

// Maximum retry delay sent to a client.
constexpr absl::Duration kLongestRetry = absl::Minutes(1);

std::map<std::string, std::string> RetryAfter(absl::Duration wait) {
  const absl::Duration retry = std::clamp(wait, absl::Milliseconds(100), kLongestRetry);
  return {{"retry_ms", std::to_string(absl::ToInt64Milliseconds(retry))}};
}

}  // namespace

absl::Status Engine::Submit(Request request, std::shared_ptr<ResponseSink> sink) {
  NIBBLE_RETURN_IF_ERROR(Check(request));
  // A sequence never grows beyond the model's limit; there it ends with "length".
  const auto prompt = static_cast<std::int64_t>(request.prompt.size());
  request.stopping.max_tokens = std::min(request.stopping.max_tokens, max_context_ - prompt);
  request.top_logprobs = std::min(request.top_logprobs, model_->config().vocab_size);  // more: all tokens
  auto group = std::make_unique<Group>(std::move(request), std::move(sink), *tokenizer_);
  const Request& asked = group->request;
  const std::int64_t pages = group->most_pages();
  const std::int64_t have = asked.principal.empty()
                                ? pool_->num_pages()
                                : std::min(pool_->num_pages(), model::KvPool::PagesFor(bounds_.kv_tokens));
  if (pages > have) {
    return base::WithReason(
        absl::ResourceExhaustedError(base::StrCat("the request needs ", pages, " blocks of the KV cache, the limit is ",
                                                  have, ": ask for fewer tokens or outputs")),
        "KV_FULL", {{"need", std::to_string(pages)}, {"have", std::to_string(have)}});
  }
  const absl::Duration now = clock_.Monotonic();
  group->submitted = asked.arrived.value_or(now);
  group->usage.prompt_tokens = prompt;
  base::MutexLock lock(mutex_);
  if (stop_) return base::WithReason(absl::UnavailableError("the model is being unloaded"), "DRAINING");
  const Queue queue = QueueBefore(*group);
  // Only waiting requests that begin before this one delay it.
  const absl::Duration wait =
      EstimatedWait(std::min(queue.requests, queue_.NumBefore(asked.principal, asked.priority)));
  const auto full = [&](const std::string& why, std::map<std::string, std::string> metadata = {}) {
    metadata.merge(RetryAfter(wait));
    return base::WithReason(absl::ResourceExhaustedError(why), "QUEUE_FULL", metadata);
  };
  if (!asked.principal.empty() && !queue.at_once && queue.own >= bounds_.max_waiting) {
    return full(base::StrCat(bounds_.max_waiting, " requests of ", asked.principal,
                             " are already waiting, which is the limit ", "(--max_waiting_requests_per_principal)"),
                {{"flag", "--max_waiting_requests_per_principal"}, {"max", std::to_string(bounds_.max_waiting)}});
  }
  if (!queue.at_once && queue.requests >= options_.max_waiting) {
    return full(base::StrCat(queue.requests, " requests are already waiting, the limit is ", options_.max_waiting));
  }
  if (queue.requests > 0 && queue.tokens + prompt > options_.max_waiting_tokens) {
    return full(base::StrCat("prompts of ", queue.tokens, " tokens are already waiting, the limit is ",
                             options_.max_waiting_tokens));
  }
  const absl::Duration limit = std::min(asked.deadline, asked.queue_deadline);
  if (!queue.at_once && now + wait > limit) {
    return full(base::StrCat("the wait would be about ", absl::ToInt64Milliseconds(wait),
                             " ms, longer than the request may wait"));
  }
  waiting_tokens_ += prompt;
  const std::uint64_t id = ++last_id_;
  queue_.Push({id, asked.principal, asked.priority, now});
  waiting_.emplace(id, std::move(group));
  load_.waiting = static_cast<std::int64_t>(waiting_.size());
  wake_.NotifyAll();
  return absl::OkStatus();
}

// Waiting requests that fit beside the running ones begin after the current step, so they do not count as queued.
Engine::Queue Engine::QueueBefore(const Group& group) const {
  std::int64_t slots = options_.max_running - running_outputs_;
  std::int64_t free_pages = free_pages_ - running_outputs_;  // one page for each running output to grow
  const std::string& principal = group.request.principal;
  Queue queue = {.requests = queue_.size(), .own = queue_.NumOf(principal), .tokens = waiting_tokens_};
  std::map<std::string, Held> held = held_;
  const auto fits = [&](const Group& other) { return other.request.n <= slots && other.first_pages() <= free_pages; };
  bool all_fit = true;
  for (const auto& [id, waiting] : waiting_) {
    const Group& other = *waiting;
    all_fit = fits(other);
    if (!all_fit) break;
    Held& its = held[other.request.principal];
    if (!WithinBounds(other.request.principal, its, other)) continue;
    its.outputs += other.request.n;
    its.pages += other.most_pages();
    slots -= other.request.n;
    free_pages -= other.first_pages() + other.request.n;
    --queue.requests;
    if (other.request.principal == principal) --queue.own;
    queue.tokens -= other.prompt_size();
  }
  queue.at_once = queue.own == 0 && all_fit && fits(group) && WithinBounds(principal, held[principal], group);
  return queue;
}

bool Engine::WithinBounds(const std::string& principal, const Held& held, const Group& group) const {
  return principal.empty() || (held.outputs + group.request.n <= bounds_.max_running &&
                               held.pages + group.most_pages() <= model::KvPool::PagesFor(bounds_.kv_tokens));
}

// Estimates the wait behind `queued` requests: each takes the recent mean time, and max_running of them run at once.
absl::Duration Engine::EstimatedWait(std::int64_t queued) const {
  return mean_service_ * static_cast<double>(queued + 1) / static_cast<double>(options_.max_running);
}

void Engine::Begin(std::unique_ptr<Group> group, absl::Duration now) {
  Group& next = *group;
  next.begun = true;
  next.started = now;
  next.usage.queue_ms = absl::ToDoubleMilliseconds(now - next.submitted);
  next.launches_before = stream_.launches != nullptr ? stream_.launches->total() : 0;
  waiting_tokens_ -= next.prompt_size();
  running_outputs_ += next.request.n;
  Held& held = held_[next.request.principal];
  held.outputs += next.request.n;
  held.pages += next.most_pages();
  running_.push_back(std::move(group));
}

void Engine::Admit() {
  std::vector<std::unique_ptr<Group>> gone;  // ended while they waited
  std::size_t admitted = 0;
  absl::Duration wait;  // of a request that arrives now
  const absl::Duration now = clock_.Monotonic();
  const bool all_run = Resume();
  {
    base::MutexLock lock(mutex_);
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      const Request& request = it->second->request;
      if (!request.cancel.cancelled() && now < request.deadline && now < request.queue_deadline) {
        ++it;
        continue;
      }
      waiting_tokens_ -= it->second->prompt_size();
      queue_.Remove(it->first);
      gone.push_back(std::move(it->second));
      it = waiting_.erase(it);
    }
    // A request that does not fit yet is overtaken only if its principal is at its limits. No request begins while
    // another is preempted.
    const auto may = [this](const WaitingEntry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      const auto held = held_.find(entry.principal);
      return held == held_.end() || WithinBounds(entry.principal, held->second, *waiting_.at(entry.id));
    };
    while (all_run && running_outputs_ < options_.max_running) {
      const WaitingEntry* next = queue_.Next(now, may);
      if (next == nullptr) break;
      const auto place = waiting_.find(next->id);
      Group& group = *place->second;
      if (group.request.n > options_.max_running - running_outputs_) break;
      if (group.first_pages() + Headroom() > pool_->free_pages() || !Take(group)) break;
      queue_.Begin(place->first, now);
      Begin(std::move(place->second), now);
      waiting_.erase(place);
      ++admitted;
    }
    RefreshLoad();  // not only after the step: a long prompt runs for seconds before its first token
    wait = EstimatedWait(static_cast<std::int64_t>(waiting_.size()));
  }
  for (std::size_t i = running_.size() - admitted; i < running_.size(); ++i) {
    running_[i]->sink->OnStart(running_[i]->usage.queue_ms);
  }
  for (auto& group : gone) {
    if (now >= group->request.deadline) {  // checked first: a client whose deadline has passed cancels too
      EndGroup(*group, absl::DeadlineExceededError("the deadline passed while the request waited"),
               FinishReason::kDeadline);
    } else if (group->request.cancel.cancelled()) {
      EndGroup(*group, absl::CancelledError("cancelled while the request waited"), FinishReason::kCancelled);
    } else {
      EndGroup(*group,
               base::WithReason(absl::ResourceExhaustedError("queue_timeout passed while the request waited"),
                                "QUEUE_FULL", RetryAfter(wait)),
               FinishReason::kDeadline);
    }
  }
}

}  // namespace nibble::serve
