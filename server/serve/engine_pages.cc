// Engine: gives pages of the KV cache to growing sequences.
#include <algorithm>
#include <utility>

#include "server/serve/sequence.h"

namespace nibble::serve {

namespace {

template <typename Outputs>
std::int64_t Live(const Outputs& outputs) {
  return std::count_if(outputs.begin(), outputs.end(), [](const auto& output) { return !output->ended; });
}

}  // namespace

// Pages to leave free when a request begins: one for each running output, so that the next pages of these outputs do
// not preempt the new request.
std::int64_t Engine::Headroom() const {
  std::int64_t outputs = 0;
  for (const auto& group : running_) {
    if (!group->preempted && !group->ended) outputs += Live(group->outputs);
  }
  return outputs;
}

bool Engine::Take(Group& group) {
  std::int64_t pages = 0;
  const auto pages_of = [&](const Sequence& output) {
    const auto tokens = static_cast<std::int64_t>(output.tokens.size());
    return model::KvPool::PagesFor(tokens + (tokens < group.prompt_size() + group.request.stopping.max_tokens ? 1 : 0));
  };
  for (const auto& output : group.outputs) pages += output->ended ? 0 : pages_of(*output);
  if (pages > pool_->free_pages()) return false;
  for (auto& output : group.outputs) {
    if (!output->ended) pool_->Allocate(pages_of(*output), &output->pages);
  }
  return true;
}

bool Engine::Grow(Group& group) {
  for (auto& output : group.outputs) {
    if (output->ended) continue;
    const std::int64_t missing = model::KvPool::PagesFor(static_cast<std::int64_t>(output->tokens.size())) -
                                 static_cast<std::int64_t>(output->pages.size());
    while (missing > 0 && !pool_->Allocate(missing, &output->pages)) {
      // Never preempts the oldest request unless it runs alone: it may take every page, so some request always
      // completes.
      const auto last = std::find_if(running_.rbegin(), running_.rend(),
                                     [](const auto& other) { return !other->preempted && !other->ended; });
      Preempt(**last);
      if (last->get() == &group) return false;
    }
  }
  return true;
}

void Engine::Preempt(Group& group) {
  group.preempted = true;
  for (auto& output : group.outputs) {
    pool_->Free(std::exchange(output->pages, {}));
    output->fed = 0;
  }
  ++options_.totals->preemptions;
}

bool Engine::Resume() {
  for (auto& group : running_) {
    if (!group->preempted) continue;
    const std::int64_t headroom = Headroom();
    std::int64_t pages = headroom;
    for (const auto& output : group->outputs) {
      if (!output->ended) pages += model::KvPool::PagesFor(static_cast<std::int64_t>(output->tokens.size()) + 1);
    }
    // Without headroom no other request runs, so the group may take every page.
    if ((headroom > 0 && pages > pool_->free_pages()) || !Take(*group)) return false;
    group->preempted = false;
  }
  return true;
}

}  // namespace nibble::serve
