#include "client/cli/terminal.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ostream>

#include "server/base/strings.h"

namespace nibble::cli {
namespace {

constexpr double kRedrawSeconds = 0.1;
constexpr int kBarWidth = 30;

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

std::size_t Width(std::string_view text) {
  // Counts first bytes: in UTF-8, the other bytes of a character have the form 10xxxxxx.
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

void Table::Print(std::ostream& out) const {
  std::vector<std::size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], Width(row[i]));
  }
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line.append(widths[i] - Width(row[i]) + 2, ' ');
    }
    out << Printable(line) << '\n';
  }
}

void Progress::Update(const std::string& stage, std::int64_t done, std::int64_t total) {
  if (stage.empty()) return;
  const bool new_stage = stage != stage_;
  if (new_stage) {
    End();
    stage_ = stage;
    shown_tenth_ = -1;
  }
  done_ = done;
  total_ = total;
  Draw(new_stage || (total > 0 && done >= total));
}

void Progress::Draw(bool now) {
  const double share =
      total_ > 0 ? std::clamp(static_cast<double>(done_) / static_cast<double>(total_), 0.0, 1.0) : 0.0;
  const int percent = static_cast<int>(share * 100);
  if (!terminal_.err_is_tty) {
    const int tenth = percent / 10;
    if (tenth == shown_tenth_) return;
    shown_tenth_ = tenth;
    terminal_.err << stage_;
    if (total_ > 0) terminal_.err << ' ' << percent << '%';
    terminal_.err << '\n' << std::flush;
    return;
  }
  const double seconds = Seconds();
  if (!now && seconds - drawn_at_s_ < kRedrawSeconds) return;
  drawn_at_s_ = seconds;
  const int filled = static_cast<int>(share * kBarWidth);
  terminal_.err << '\r' << Printable(stage_) << " [" << std::string(static_cast<std::size_t>(filled), '#')
                << std::string(static_cast<std::size_t>(kBarWidth - filled), '.') << "] ";
  if (total_ > 0) terminal_.err << percent << "%";
  terminal_.err << "\x1b[K" << std::flush;  // clears the rest of an older, longer line
  open_ = true;
}

void Progress::End() {
  if (open_) {
    Draw(/*now=*/true);
    terminal_.err << '\n' << std::flush;
  }
  open_ = false;
}

std::string HumanNumber(double value, int significant_digits) {
  if (std::isnan(value)) return "-";
  char text[64];
  std::snprintf(text, sizeof text, "%.*g", significant_digits, value);
  return text;
}

namespace {

// The text with `instead` in place of each control character other than a line end or a tab.
std::string WithoutControls(std::string_view text, std::string_view instead) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F are control characters too: C2 9B means the same as ESC [.
    if (byte == 0xC2 && i + 1 < text.size() && (static_cast<unsigned char>(text[i + 1]) & 0xE0) == 0x80) {
      ++i;
      result += instead;
    } else if (byte >= 0x20 ? byte != 0x7F : text[i] == '\n' || text[i] == '\t') {
      result += text[i];
    } else {
      result += instead;
    }
  }
  return result;
}

}  // namespace

std::string Printable(std::string_view text) { return WithoutControls(text, ""); }

std::string Visible(std::string_view text) { return WithoutControls(text, "\xEF\xBF\xBD"); }

}  // namespace nibble::cli
