// The objects of a fake API server of Kubernetes (fake_api_server.h).
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "server/base/json.h"

namespace nibble::testing {

// A target of the API, taken apart.
struct ApiTarget {
  std::string collection;  // "/apis/batch/v1/namespaces/ml/jobs"
  std::string name;        // "" for the collection itself
  std::map<std::string, std::string> query;

  std::string Query(const std::string& key) const {
    const auto found = query.find(key);
    return found == query.end() ? std::string() : found->second;
  }
};
ApiTarget ParseTarget(const std::string& target);

// A "Job", "Pod" or "Event" of the namespace "ml" without more fields than it needs.
base::Json ApiObject(const std::string& kind, const std::string& name,
                     const std::map<std::string, std::string>& labels = {});

// A Status of the API (meta/v1).
base::Json StatusObject(int code, const std::string& reason, const std::string& message);

// The answer to a request.
struct ObjectAnswer {  // NOLINT(bugprone-exception-escape): the moves of nlohmann::json throw nothing
  int status = 200;
  base::Json body;
};

// Collections in memory with the history of their changes. Objects need apiVersion, kind and metadata with name and
// namespace; uid and resourceVersion are added. Selectors are equalities: labelSelector of labels, fieldSelector of
// involvedObject.uid. Thread-compatible.
class FakeApiObjects {
 public:
  void Put(base::Json object);  // adds or replaces
  ObjectAnswer Create(const ApiTarget& target, base::Json object);
  ObjectAnswer Get(const ApiTarget& target) const;
  // With `limit` and `continue`.
  ObjectAnswer List(const ApiTarget& target) const;
  // Removes the object at once; `options`: null or DeleteOptions, of which preconditions.uid is obeyed.
  ObjectAnswer Delete(const ApiTarget& target, const base::Json& options);

  std::uint64_t version() const { return version_; }
  // Whether the changes after `version` have been forgotten.
  bool HasExpired(std::uint64_t version) const { return version < forgotten_; }
  // Lines of a watch: all changes after `version`; an ERROR event with code 410; a bookmark.
  std::string EventsSince(const ApiTarget& target, std::uint64_t version) const;
  static std::string Expired();
  std::string Bookmark() const;
  // Forgets the history: watches from an older version have expired.
  void Forget();

 private:
  struct Change {
    std::uint64_t version = 0;
    const char* type = "";
    std::string collection;
    base::Json object;
  };
  void Record(const char* type, const std::string& collection, base::Json& object);

  std::uint64_t version_ = 100;
  std::uint64_t forgotten_ = 0;  // the last version of which the history is gone
  std::uint64_t num_created_ = 0;
  std::map<std::string, std::map<std::string, base::Json>> collections_;  // by collection, then by name
  std::vector<Change> history_;
};

}  // namespace nibble::testing
