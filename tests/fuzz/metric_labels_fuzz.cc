// F10 (docs/faults.md): a text in every label whose value comes from outside telemetry. For any text, a scrape gives an
// exposition that Prometheus can read, with one line per series. If the text is ASCII without NUL, only escapes change
// it.
#include <algorithm>
#include <string>

#include "server/telemetry/metrics.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/exposition.h"
#include "tests/support/metric_labels.h"

using nibble::fuzz::Expect;

namespace {

constexpr std::size_t kMaxText = 4096;  // limits the time of this test: a text occurs in about a hundred lines

std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"' || c == '\n') out += '\\';
    out += c == '\n' ? 'n' : c;
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = nibble::fuzz::Text(data, size).substr(0, kMaxText);
  const std::string_view first = text.substr(0, text.size() / 2);
  const std::string_view second = text.substr(text.size() / 2);
  nibble::telemetry::Metrics metrics({"1", "c", "none"}, {.job_states = {"QUEUED"}});
  nibble::testing_support::TouchEveryLabel(metrics, text, first, second);
  const std::string exposition = metrics.Scrape();
  Expect(nibble::testing_support::ExpositionFault(exposition).empty(), "the exposition is valid");
  if (std::all_of(text.begin(), text.end(), [](unsigned char c) { return c > 0 && c < 0x80; })) {
    const std::string line = "nibble_rejected_total{reason=\"" + Escaped(text) + "\"} 1\n";
    Expect(exposition.find(line) != std::string::npos, "a plain text stays unchanged");
  }
  return 0;
}
