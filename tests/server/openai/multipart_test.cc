#include "server/openai/multipart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/base/error.h"

namespace nibble::openai {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct TakenPart {
  std::string name;
  std::optional<std::string> file_name;
  std::string bytes;
  bool ended = false;
  bool operator==(const TakenPart&) const = default;
};

class Recorder final : public FormSink {
 public:
  absl::Status BeginPart(const FormPart& part) override {
    if (part.name == "refused") return base::FieldError("refused", "is not wanted");
    parts.push_back({part.name, part.file_name, "", false});
    return absl::OkStatus();
  }
  absl::Status PartBytes(std::string_view bytes) override {
    largest = std::max(largest, bytes.size());
    parts.back().bytes += bytes;
    return absl::OkStatus();
  }
  absl::Status EndPart() override {
    parts.back().ended = true;
    return absl::OkStatus();
  }

  std::vector<TakenPart> parts;
  std::size_t largest = 0;
};

std::string Part(const std::string& disposition, const std::string& bytes) {
  return "--X\r\nContent-Disposition: form-data; " + disposition + "\r\n\r\n" + bytes + "\r\n";
}

constexpr char kEnd[] = "--X--\r\n";

// Feeds the body in pieces of that size.
absl::Status Parse(const std::string& body, Recorder& sink, std::size_t piece = std::string::npos,
                   FormLimits limits = {}) {
  auto parser = FormParser::Make("multipart/form-data; boundary=X", limits, sink);
  if (!parser.ok()) return parser.status();
  for (std::size_t at = 0; at < body.size(); at += std::min(piece, body.size() - at)) {
    const absl::Status status = parser->Feed(std::string_view(body).substr(at, piece));
    if (!status.ok()) return status;
  }
  return parser->Finish();
}

TEST(FormParserTest, PartsAreTheSameForAnyPieces) {
  const std::string bytes = "\r\n--\r\n--\r--X\r\n-\r\n--";  // beginnings of the delimiter
  const std::string body = Part("name=\"purpose\"", "fine-tune") + Part("name=\"file\"; filename=\"a.jsonl\"", bytes) +
                           Part("name=empty", "") + kEnd + "an epilogue";
  for (std::size_t piece = 1; piece <= body.size(); ++piece) {
    Recorder sink;
    const absl::Status status = Parse(body, sink, piece);
    ASSERT_TRUE(status.ok()) << piece << ": " << status;
    EXPECT_THAT(sink.parts,
                ElementsAre(TakenPart{"purpose", std::nullopt, "fine-tune", true},
                            TakenPart{"file", "a.jsonl", bytes, true}, TakenPart{"empty", std::nullopt, "", true}))
        << piece;
  }
}

TEST(FormParserTest, BytesOfALargePartPassThrough) {
  const std::string bytes(1 << 20, '\n');
  Recorder sink;
  ASSERT_TRUE(Parse(Part("name=file", bytes) + kEnd, sink, 1000).ok());
  EXPECT_EQ(sink.parts.at(0).bytes, bytes);
  EXPECT_LE(sink.largest, 1100u) << "the parser must not collect the bytes of a part";
}

TEST(FormParserTest, ReadsNamesAsClientsWriteThem) {
  const std::vector<std::pair<std::string, std::string>> names = {
      {"filename=plain.txt", "plain.txt"},
      {"filename=\"Z\xC3\xA4hler.txt\"", "Z\xC3\xA4hler.txt"},
      {"filename=\"a \\\"b\\\".txt\"", "a \"b\".txt"},
      {"filename=\"a %22b%22 100%25.txt\"", "a \"b\" 100%25.txt"},
      {"filename=\"C:\\dir\\a.txt\"", "C:\\dir\\a.txt"},
      {"filename=\"x.txt\"; filename*=UTF-8''%E2%82%AC%20rates.txt", "\xE2\x82\xAC rates.txt"},
      {"filename=\"a;b=c.txt\"", "a;b=c.txt"},
  };
  for (const auto& [written, name] : names) {
    Recorder sink;
    const absl::Status status = Parse(Part("name=\"file\"; " + written, "x") + kEnd, sink);
    ASSERT_TRUE(status.ok()) << written << ": " << status;
    EXPECT_EQ(sink.parts.at(0).file_name, name);
  }
}

TEST(FormParserTest, OtherFieldsOfAPartAreIgnored) {
  Recorder sink;
  const std::string body =
      "a preamble\r\n--X \t\r\nContent-Type: text/plain\r\ncontent-disposition: FORM-DATA; NAME=a\r\nX-Other: "
      "1\r\n\r\nb"
      "\r\n--X--";
  ASSERT_TRUE(Parse(body, sink).ok());
  EXPECT_THAT(sink.parts, ElementsAre(TakenPart{"a", std::nullopt, "b", true}));
}

TEST(FormParserTest, MalformedBodiesAreRefused) {
  const std::string part = Part("name=a", "b");
  const std::vector<std::pair<std::string, std::string>> bodies = {
      {"", "before the last boundary"},
      {part, "before the last boundary"},
      {part + "--X", "before the last boundary"},
      {Part("name=a", "\r\n--XX") + kEnd, "follows a boundary"},
      {"--Xtra\r\n" + part + kEnd, "follows a boundary"},
      {"--X\r\n\r\n\r\nb\r\n--X--", "no field \"Content-Disposition"},
      {"--X\r\nContent-Disposition: attachment; name=a\r\n\r\nb\r\n--X--", "no field \"Content-Disposition"},
      {"--X\r\nno colon\r\n\r\nb\r\n--X--", "no colon"},
      {Part("filename=a", "b") + kEnd, "has no name"},
      {Part("name=\"a", "b") + kEnd, "cannot be parsed"},
      {Part("name=a; name=b", "b") + kEnd, "cannot be parsed"},
      {Part("name=a; filename*=latin1''b", "b") + kEnd, "filename*"},
      {Part("name=\"\xFF\"", "b") + kEnd, "not UTF-8"},
      {Part("name=a; filename*=UTF-8''%FF", "b") + kEnd, "not UTF-8"},
      {Part("name=refused", "b") + kEnd, "is not wanted"},
  };
  for (const auto& [body, why] : bodies) {
    Recorder sink;
    const absl::Status status = Parse(body, sink);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << body << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why)) << body;
  }
}

TEST(FormParserTest, SizesAreLimited) {
  Recorder sink;
  const FormLimits limits{.max_parts = 2, .max_part_header_bytes = 100, .max_preamble_bytes = 10};
  const std::string part = Part("name=a", "b");
  EXPECT_TRUE(Parse(part + part + kEnd, sink, 7, limits).ok());
  EXPECT_THAT(std::string(Parse(part + part + part + kEnd, sink, 7, limits).message()), HasSubstr("more than 2 parts"));
  EXPECT_THAT(std::string(Parse("--X\r\nA: " + std::string(200, 'a'), sink, 7, limits).message()),
              HasSubstr("more than 100 bytes"));
  EXPECT_THAT(std::string(Parse("--X" + std::string(200, ' '), sink, 7, limits).message()),
              HasSubstr("follows a boundary"));
  EXPECT_THAT(std::string(Parse(std::string(200, 'a'), sink, 7, limits).message()), HasSubstr("first 10 bytes"));
}

TEST(FormParserTest, ContentTypeNeedsABoundary) {
  Recorder sink;
  for (const std::string type :
       {"", "application/json", "multipart/form-data", "multipart/form-data; boundary=", "multipart/mixed; boundary=X",
        "multipart/form-data; boundary=\"a", "multipart/form-data; boundary=a; boundary=b"}) {
    const auto parser = FormParser::Make(type, {}, sink);
    EXPECT_TRUE(absl::IsInvalidArgument(parser.status())) << type;
    EXPECT_EQ(base::ReasonMetadata(parser.status())["field"], "Content-Type");
  }
  const std::string long_boundary(71, 'a');
  EXPECT_FALSE(FormParser::Make("multipart/form-data; boundary=" + long_boundary, {}, sink).ok());
  auto quoted = FormParser::Make("Multipart/Form-Data; charset=utf-8; Boundary=\"a b\"", {}, sink);
  ASSERT_TRUE(quoted.ok());
  ASSERT_TRUE(quoted->Feed("--a b\r\nContent-Disposition: form-data; name=a\r\n\r\nc\r\n--a b--").ok());
  EXPECT_TRUE(quoted->Finish().ok());
}

}  // namespace
}  // namespace nibble::openai
