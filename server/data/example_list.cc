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
  if (selected_ != nullptr) return selected_->size();
  if (file_ != nullptr) return file_->size();
  if (lengths_ != nullptr) return lengths_->size();
  return memory_ != nullptr ? memory_->size() : 0;
}

ExampleList ExampleList::Select(std::vector<std::uint32_t> indices) const {
  for (std::uint32_t& index : indices) index = static_cast<std::uint32_t>(At(index));
  ExampleList selection = *this;
  selection.selected_ = std::make_shared<const std::vector<std::uint32_t>>(std::move(indices));
  return selection;
}

Example ExampleList::operator[](std::size_t i) const {
  CHECK(has_tokens());
  return file_ != nullptr ? file_->Get(At(i)) : (*memory_)[At(i)];
}

std::int64_t ExampleList::num_tokens(std::size_t i) const {
  const std::size_t at = At(i);
  if (lengths_ != nullptr) return (*lengths_)[at].num_tokens;
  return file_ != nullptr ? file_->num_tokens(at) : static_cast<std::int64_t>((*memory_)[at].tokens.size());
}

std::int64_t ExampleList::num_trained(std::size_t i) const {
  const std::size_t at = At(i);
  if (lengths_ != nullptr) return (*lengths_)[at].num_trained;
  return file_ != nullptr ? file_->num_trained(at) : (*memory_)[at].num_trained();
}

std::int64_t ExampleList::line(std::size_t i) const {
  const std::size_t at = At(i);
  if (lengths_ != nullptr) return (*lengths_)[at].line;
  return file_ != nullptr ? static_cast<std::int64_t>(file_->entry(at).line) : (*memory_)[at].line;
}

}  // namespace nibble::data
