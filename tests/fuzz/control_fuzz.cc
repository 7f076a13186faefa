// Negative control: a target that follows its input, so that tests can check that each kind of finding is reported.
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "server/base/json.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view order = nibble::fuzz::Text(data, size);
  if (order == "throw") throw std::runtime_error("on request");
  nibble::fuzz::Expect(order != "abort", "the order is not \"abort\"");
  if (order == "allocate") {
    std::vector<char> block(std::size_t{300} << 20);
    nibble::fuzz::Expect(block.back() == 0, "a new block is zero");
  }
  if (order == "leak") nibble::fuzz::ExpectClean(absl::InternalError("std::bad_alloc"), order);
  // Our own path is removed before the message is sent; text quoted from the client stays, escaped or not.
  const auto json = nibble::base::ParseJson(order);
  const std::string quoted = json.ok() && json->is_string() ? json->get<std::string>() : std::string(order);
  nibble::fuzz::ExpectClean(absl::InvalidArgumentError("/etc/nibble/orders: no order is " + quoted), order);
  if (order == "hang") std::this_thread::sleep_for(std::chrono::minutes(1));
  return 0;
}
