#include "server/data/example_list.h"

#include <numeric>
#include <utility>

#include "server/base/log.h"
#include "server/data/token_file.h"

namespace nibble::data {

std::int64_t Example::num_trained() const {
  return trained.empty() ? 0 : std::accumulate(trained.begin() + 1, trained.end(), std::int64_t{0});
}

ExampleList::ExampleList(std::vector<Example> examples)
    : memory_(std::make_shared<const std::vector<Example>>(std::move(examples))) {}

ExampleList::ExampleList(std::vector<ExampleLength> lengths)
    : lengths_(std::make_shared<const std::vector<ExampleLength>>(std::move(lengths))) {}

std::size_t ExampleList::size() const {
  if (file_ != nullptr) return file_->size();
  if (lengths_ != nullptr) return lengths_->size();
  return memory_ != nullptr ? memory_->size() : 0;
}

Example ExampleList::operator[](std::size_t i) const {
  CHECK(has_tokens());
  return file_ != nullptr ? file_->Get(i) : (*memory_)[i];
}

std::int64_t ExampleList::num_tokens(std::size_t i) const {
  if (lengths_ != nullptr) return (*lengths_)[i].num_tokens;
  return file_ != nullptr ? file_->num_tokens(i) : static_cast<std::int64_t>((*memory_)[i].tokens.size());
}

std::int64_t ExampleList::num_trained(std::size_t i) const {
  if (lengths_ != nullptr) return (*lengths_)[i].num_trained;
  return file_ != nullptr ? file_->num_trained(i) : (*memory_)[i].num_trained();
}

}  // namespace nibble::data
