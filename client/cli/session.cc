#include "client/cli/session.h"

#include <cstdio>
#include <random>

#include "absl/strings/numbers.h"
#include "server/base/error.h"
#include "server/base/files.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/base/utf8.h"

namespace nibble::cli {

absl::Status Session::Prepare() {
  NIBBLE_ASSIGN_OR_RETURN(security_, ReadConnection(server, connection));
  return absl::OkStatus();
}

client::Client& Session::client() {
  if (!client_.has_value()) {
    client::ClientOptions options;
    if (timeout_s > 0) {
      options.deadline = absl::Seconds(timeout_s);
      options.long_deadline = absl::Seconds(timeout_s);
    }
    options.security = security_;
    options.on_lost = [this](const absl::Status& why) {
      terminal.err << "connection lost (" << Printable(std::string(why.message())) << "), retrying\n" << std::flush;
    };
    client_.emplace(connect_(server, options));
  }
  return *client_;
}

Session::Note::Note(Session& session, const google::longrunning::Operation& operation)
    : note_(session.terminal.interrupt) {
  if (note_ == nullptr || operation.done()) return;
  const std::string& id = operation.name();
  note_->Set(Printable(
      base::StrCat("operation ", id, " is still running on the server; see: nibble operations wait|cancel ", id)));
}

Session::Note::~Note() {
  if (note_ != nullptr) note_->Set("");
}

void Session::NoteJobContinues(const std::string& job) {
  if (terminal.interrupt == nullptr) return;
  terminal.interrupt->Set(
      Printable(base::StrCat("job ", job, " continues on the server; see: nibble jobs watch|cancel ", job)));
}

absl::Status CheckText(std::string_view field, std::string_view text) {
  if (!base::IsValidUtf8(text)) return base::FieldError(field, "got bytes that are not UTF-8, wanted text");
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadText(std::string_view field, const std::string& path) {
  constexpr std::uint64_t kMaxBytes = 64u << 20;
  absl::StatusOr<std::string> text = base::RealFileSystem().Read(path, kMaxBytes);
  if (!text.ok()) {
    return base::WithReason(
        absl::Status(text.status().code(), base::StrCat(field, ": ", base::ToStd(text.status().message()))), "FILE");
  }
  NIBBLE_RETURN_IF_ERROR(CheckText(field, *text));
  return text;
}

absl::StatusOr<v1::Device> ParseDevice(std::string_view field, const std::string& text) {
  v1::Device device;
  std::int32_t ordinal = 0;
  if (text == "auto") {
    device.set_kind(v1::DEVICE_KIND_AUTO);
  } else if (text == "cpu") {
    device.set_kind(v1::DEVICE_KIND_CPU);
  } else if (text == "cuda" ||
             (text.starts_with("cuda:") && absl::SimpleAtoi(text.substr(5), &ordinal) && ordinal >= 0)) {
    device.set_kind(v1::DEVICE_KIND_CUDA);
    device.set_ordinal(ordinal);
  } else {
    return base::FieldError(field, base::StrCat("got \"", text, "\", wanted auto, cpu or cuda:N"));
  }
  return device;
}

absl::Status WithResumeHint(const absl::Status& status, const std::string& upload_id) {
  if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) return status;
  absl::Status out(status.code(),
                   base::StrCat(std::string(status.message()), "; the server keeps the received part for a while: ",
                                "continue with --resume ", upload_id));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) { out.SetPayload(url, payload); });
  return out;
}

std::string NewUuid() {
  std::random_device random;
  std::uint32_t words[4] = {random(), random(), random(), random()};
  words[1] = (words[1] & 0xFFFF0FFFu) | 0x00004000u;  // version 4
  words[2] = (words[2] & 0x3FFFFFFFu) | 0x80000000u;  // variant of RFC 4122
  char text[40];
  std::snprintf(text, sizeof text, "%08x-%04x-%04x-%04x-%04x%08x", words[0], words[1] >> 16, words[1] & 0xFFFFu,
                words[2] >> 16, words[2] & 0xFFFFu, words[3]);
  return text;
}

}  // namespace nibble::cli
