// Waits for callbacks of the client in tests of server/kube.
#pragma once
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/base/mutex.h"
#include "server/kube/api_client.h"
#include "tests/support/soon.h"

namespace nibble::kube {

// Sends the request and waits for its answer.
inline absl::StatusOr<ApiAnswer> Await(ApiClient& client, ApiRequest request) {
  std::promise<absl::StatusOr<ApiAnswer>> answer;
  client.Request(std::move(request), [&](absl::StatusOr<ApiAnswer> got) { answer.set_value(std::move(got)); });
  return answer.get_future().get();
}

inline absl::StatusOr<ApiAnswer> Get(ApiClient& client, const std::string& target) {
  ApiRequest request;
  request.target = target;
  return Await(client, std::move(request));
}

// Values that callbacks add. Thread-safe.
template <typename T>
class Collected {
 public:
  void Add(T value) {
    base::MutexLock lock(mutex_);
    values_.push_back(std::move(value));
  }
  std::vector<T> Values() const {
    base::MutexLock lock(mutex_);
    return values_;
  }
  // Waits until `count` values have been added.
  bool Await(std::size_t count) const {
    return testing_support::Soon([&] { return Values().size() >= count; });
  }

 private:
  mutable base::Mutex mutex_;
  std::vector<T> values_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nibble::kube
