// The program's input and output: results on `out`, everything else on `err`.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "client/cli/interrupt.h"

namespace nibble::cli {

struct Terminal {
  std::istream& in;
  std::ostream& out;
  std::ostream& err;
  bool in_is_tty = false;
  bool out_is_tty = false;
  bool err_is_tty = false;
  InterruptNote* interrupt = nullptr;  // null: print nothing on Ctrl-C
  int out_columns = 0;                 // width of `out` in characters; 0: unknown
};

// Rows in aligned columns under a heading.
class Table {
 public:
  explicit Table(std::vector<std::string> heading) : rows_{std::move(heading)} {}
  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  void Print(std::ostream& out) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// Shows the progress of long work. On a terminal: one line, redrawn at most ten times per second. Otherwise: one line
// per stage and per tenth of a stage. Not thread-safe.
class Progress {
 public:
  explicit Progress(Terminal& terminal) : terminal_(terminal) {}
  ~Progress() { End(); }
  // Returns a callback for long work.
  std::function<void(const std::string& stage, std::int64_t done, std::int64_t total)> Show() {
    return [this](const std::string& stage, std::int64_t done, std::int64_t total) { Update(stage, done, total); };
  }
  // total 0: unknown.
  void Update(const std::string& stage, std::int64_t done, std::int64_t total);
  void End();  // draws the last state and ends the line

 private:
  void Draw(bool now);

  Terminal& terminal_;
  std::string stage_;
  std::int64_t done_ = 0;
  std::int64_t total_ = 0;
  int shown_tenth_ = -1;
  double drawn_at_s_ = -1;
  bool open_ = false;
};

std::string HumanNumber(double value, int significant_digits);  // "0.000125", "1234", "-" for NaN
// The text without characters that could control a terminal: all control characters except line ends and tabs.
std::string Printable(std::string_view text);
// The text with U+FFFD in place of these characters, for text of which nothing may be lost. Requires valid UTF-8.
std::string Visible(std::string_view text);
// Columns of a text, one per character: good enough for names and numbers.
std::size_t Width(std::string_view text);

}  // namespace nibble::cli
