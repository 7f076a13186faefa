// Checks docs/rpc_coverage.md, docs/faults.md and docs/errors.md: every method, command, fault and reason has a row,
// every test that a row names exists, and the tests of methods and commands call them.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "client/cli/app.h"
#include "inference/grpc_service.pb.h"
#include "nibble/internal/v1/trainer_report.pb.h"
#include "server/base/strings.h"
#include "server/rpc/methods.h"

namespace nibble {
namespace {

std::string Read(const std::string& path) {
  std::ifstream file(std::string(NIBBLE_SOURCE_DIR "/") + path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

struct Citation {
  std::string file, test;
};

constexpr char kCoverage[] = "docs/rpc_coverage.md", kFaults[] = "docs/faults.md", kErrors[] = "docs/errors.md";
constexpr char kErrorTests[] = "## Tests of the other reasons";  // a heading in kErrors

// Maps the first cell of each row, without quotes, to the tests in the last cell: "`file`: `test`, `test`; `file`:
// `test`". Reads the rows after `heading`.
std::map<std::string, std::vector<Citation>> Rows(const char* document, const std::string& heading = "") {
  std::map<std::string, std::vector<Citation>> rows;
  const std::string whole = Read(document);
  EXPECT_NE(whole.find(heading), std::string::npos) << document << " has no " << heading;
  std::istringstream text(whole.substr(std::min(whole.find(heading), whole.size())));
  const std::regex row("\\| `([^`]+)` \\| (.*) \\|"), quoted("`([^`]+)`");
  for (std::string line; std::getline(text, line);) {
    std::smatch cells;
    if (!std::regex_match(line, cells, row)) continue;
    EXPECT_FALSE(rows.contains(cells[1])) << cells[1] << " has two rows";
    std::vector<Citation>& citations = rows[cells[1]];
    std::string file;
    const std::string tests = cells[2];
    for (std::sregex_iterator it(tests.begin(), tests.end(), quoted), end; it != end; ++it) {
      const std::string name = (*it)[1];
      if (name.starts_with("tests/")) {
        file = name;
      } else {
        citations.push_back({file, name});
      }
    }
    EXPECT_FALSE(citations.empty()) << line;
  }
  return rows;
}

std::set<std::string> Methods() {
  // Debian has no library with the messages of these two services.
  std::set<std::string> names = {"grpc.health.v1.Health/Check", "grpc.health.v1.Health/Watch",
                                 "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"};
  std::vector<std::string> services(std::begin(rpc::kServices), std::end(rpc::kServices));
  internal::v1::ReportRequest::descriptor();  // links its file
  services.push_back("nibble.internal.v1.TrainerReportService");
  inference::ServerLiveRequest::descriptor();
  services.push_back("inference.GRPCInferenceService");
  for (const std::string& service_name : services) {
    const auto* service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(service_name);
    EXPECT_NE(service, nullptr) << service_name;
    for (int i = 0; service != nullptr && i < service->method_count(); ++i) {
      names.insert(service_name + "/" + service->method(i)->name());
    }
  }
  return names;
}

TEST(CoverageTest, RowsMatchMethodsAndCommands) {
  std::set<std::string> wanted = Methods();
  EXPECT_GT(wanted.size(), 40u);
  const auto commands = cli::Commands();
  EXPECT_GT(commands.size(), 20u);
  wanted.insert(commands.begin(), commands.end());
  std::set<std::string> rows;
  for (const auto& [name, citations] : Rows(kCoverage)) rows.insert(name);
  for (const std::string& name : wanted) EXPECT_TRUE(rows.contains(name)) << name << " has no row";
  for (const std::string& name : rows) EXPECT_TRUE(wanted.contains(name)) << name << " is not a method or command";
}

TEST(CoverageTest, EveryTestNamedInARowExists) {
  std::map<std::string, std::string> files;
  auto rows = Rows(kCoverage);
  const auto faults = Rows(kFaults);
  EXPECT_GT(faults.size(), 25u);
  rows.insert(faults.begin(), faults.end());
  const auto errors = Rows(kErrors, kErrorTests);
  rows.insert(errors.begin(), errors.end());
  for (const auto& [name, citations] : rows) {
    for (const Citation& citation : citations) {
      if (!files.contains(citation.file)) files[citation.file] = Read(citation.file);
      const std::regex definition(citation.file.ends_with(".py") ? "def " + citation.test + "\\("
                                                                 : "TEST(_F|_P)?\\(\\w+, " + citation.test + "\\)");
      EXPECT_TRUE(std::regex_search(files[citation.file], definition))
          << name << ": " << citation.file << " has no " << citation.test;
    }
  }
}

// Texts of functions, tests and Python classes, by name.
using Functions = std::multimap<std::string, std::string>;

// Adds the functions of a file and, in C++, those of the files of tests/ that it includes. Relies on indentation: a
// function of a file or a class ends with the closing brace in the column of the function's first letter.
void AddFunctions(const std::string& path, Functions& functions) {
  static const std::regex include("#include \"(tests/[^\"]+)\""), python("( *)(?:def|class) (\\w+).*"),
      test("( *)TEST(?:_F|_P)?\\(\\w+, (\\w+)\\).*"), function("( {0,2})[A-Za-z].*?(\\w+)\\(.*[{,(}]");
  const bool is_python = path.ends_with(".py");
  std::istringstream file(Read(path));
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  std::smatch match;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string& head = lines[i];
    if (!is_python && std::regex_match(head, match, include)) AddFunctions(match[1], functions);
    const bool found = is_python ? std::regex_match(head, match, python)
                                 : std::regex_match(head, match, test) || std::regex_match(head, match, function);
    if (!found || head.starts_with("INSTANTIATE_")) continue;
    const std::string name = match[2], end = match[1].str() + "}";
    std::string text = head + "\n";
    if (is_python) {
      while (i + 1 < lines.size() &&
             (lines[i + 1].empty() || lines[i + 1].front() == ' ' || lines[i + 1].front() == ')')) {
        text += lines[++i] + "\n";
      }
    } else if (!head.ends_with('}')) {
      while (i + 1 < lines.size() && !lines[i].starts_with(end)) text += lines[++i] + "\n";
    }
    functions.emplace(name, text);
  }
}

// The text of a test and of all functions (in Python also fixtures and classes) that it calls, directly or indirectly.
std::string Reached(const Functions& functions, const Citation& citation) {
  // The patterns skip methods of other objects, which share names with our functions only by chance.
  static const std::regex calls("(?:^|[^\\w.>])(\\w+)(?=\\()"), names("(?:^|[^\\w.])(\\w+)");
  const std::regex& called = citation.file.ends_with(".py") ? names : calls;
  std::set<std::string> seen = {citation.test};
  std::vector<std::string> left = {citation.test};
  std::string reached;
  while (!left.empty()) {
    const std::string name = left.back();
    left.pop_back();
    for (auto it = functions.lower_bound(name); it != functions.upper_bound(name); ++it) {
      const std::string& text = it->second;
      reached += text;
      for (std::sregex_iterator word(text.begin(), text.end(), called), end; word != end; ++word) {
        if (functions.contains((*word)[1]) && seen.insert((*word)[1]).second) left.push_back((*word)[1]);
      }
    }
  }
  return reached;
}

bool Has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Whether a test of the programs runs the command, written as "jobs", "pause".
bool SaysCommand(const std::string& text, const std::string& command) {
  const std::size_t space = command.find(' ');
  if (space == std::string::npos) return Has(text, "\"" + command + "\"");
  const std::string noun = base::StrCat("\"", command.substr(0, space), "\", ");
  const std::string verb = base::StrCat("\"", command.substr(space + 1), "\"");
  // Or the test runs several verbs, and the verb is in a variable: "jobs", command.
  return Has(text, noun + verb) || (Has(text, verb) && std::regex_search(text, std::regex(noun + "[a-z]")));
}

// Commands by which tests of the programs call a method: ours (client/cli), and that of grpcurl for reflection.
const std::map<std::string, std::string>& CommandsThatCall() {
  static const std::map<std::string, std::string> commands = {
      {"nibble.v1.DatasetService/ListDatasets", "datasets list"},
      {"nibble.v1.DatasetService/PreviewDataset", "datasets preview"},
      {"nibble.v1.FineTuneService/PlanJob", "jobs plan"},
      {"nibble.v1.FineTuneService/GetJob", "jobs get"},
      {"nibble.v1.FineTuneService/ListJobs", "jobs list"},
      {"nibble.v1.FineTuneService/DeleteJob", "jobs delete"},
      {"nibble.v1.FineTuneService/WatchJob", "jobs watch"},
      {"nibble.v1.FineTuneService/WatchJobLogs", "jobs logs"},
      {"nibble.v1.FineTuneService/ListCheckpoints", "jobs checkpoints"},
      {"nibble.v1.FineTuneService/CancelJob", "jobs cancel"},
      {"nibble.v1.FineTuneService/PauseJob", "jobs pause"},
      {"nibble.v1.FineTuneService/ResumeJob", "jobs resume"},
      {"nibble.v1.FineTuneService/CheckpointJob", "jobs checkpoint"},
      {"nibble.v1.ModelService/PublishCheckpoint", "jobs publish"},
      {"nibble.v1.ServerService/GetLoad", "server load"},
      {"grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "describe"},
  };
  return commands;
}

// `name`: a method or a command.
bool Calls(const Citation& citation, const std::string& name) {
  static std::map<std::string, Functions> files;
  if (!files.contains(citation.file)) AddFunctions(citation.file, files[citation.file]);
  const std::string text = Reached(files[citation.file], citation);
  const std::size_t slash = name.find('/');
  if (slash == std::string::npos) return SaysCommand(text, name);
  const std::string method = name.substr(slash + 1);
  if (!citation.file.ends_with(".py")) return std::regex_search(text, std::regex("(->|Stub::|/)" + method + "\\b"));
  const auto command = CommandsThatCall().find(name);
  return Has(text, "/" + method + "\"") || Has(text, "\"" + method + "\"") ||
         (command != CommandsThatCall().end() && SaysCommand(text, command->second));
}

TEST(CoverageTest, EveryTestNamedInARowCallsItsMethodOrCommand) {
  const std::set<std::string> unimplemented(std::begin(rpc::kUnimplemented), std::end(rpc::kUnimplemented));
  for (const auto& [name, citations] : Rows(kCoverage)) {
    if (unimplemented.contains(name)) continue;  // one test covers them all
    for (const Citation& citation : citations) {
      EXPECT_TRUE(Calls(citation, name)) << name << ": " << citation.file << ", " << citation.test
                                         << " does not call it";
    }
  }
}

// One near miss of each kind: another test of the file calls the method or command, or a fixture does, or the test
// calls a method of another object that has the name of a helper.
TEST(CoverageTest, TestThatDoesNotCallItsMethodIsDetected) {
  const std::string jobs = "tests/server/rpc/fine_tune_service_test.cc",
                    operations = "tests/server/rpc/operations_test.cc", main_job = "tests/e2e/test_main_job.py";
  EXPECT_FALSE(Calls({jobs, "AWatchBeginsWithASnapshotAndEndsWithTheJob"}, "nibble.v1.FineTuneService/ListJobEvents"));
  EXPECT_TRUE(Calls({jobs, "PagesOfEventsEndWithTheLastEvent"}, "nibble.v1.FineTuneService/ListJobEvents"));
  EXPECT_FALSE(
      Calls({operations, "OperationInterruptedByARestartIsAborted"}, "google.longrunning.Operations/GetOperation"));
  EXPECT_TRUE(Calls({operations, "CancelledOperationHasCodeOneWhetherItRanOrNot"},
                    "google.longrunning.Operations/GetOperation"));
  EXPECT_FALSE(Calls({main_job, "test_events_cover_the_whole_job"}, "models import"));
  EXPECT_TRUE(Calls({main_job, "test_events_cover_the_whole_job"}, "jobs create"));
  EXPECT_FALSE(Calls({main_job, "test_job_shows_its_figures"}, "nibble.v1.FineTuneService/ListCheckpoints"));
  EXPECT_TRUE(Calls({main_job, "test_job_shows_its_figures"}, "nibble.v1.FineTuneService/ListJobs"));
}

// A method that is implemented needs more than the test of unimplemented methods.
TEST(CoverageTest, OnlyUnimplementedMethodsAreCoveredByTheTestOfAll) {
  const std::set<std::string> unimplemented(std::begin(rpc::kUnimplemented), std::end(rpc::kUnimplemented));
  for (const auto& [name, citations] : Rows(kCoverage)) {
    const bool says_unimplemented = citations.front().test == "EveryUnimplementedMethodIsRefusedByName";
    EXPECT_EQ(says_unimplemented, unimplemented.contains(name)) << name;
  }
}

// GetServerInfo lists every field that is refused as not implemented. For the fields of a job spec, which tables
// refuse, see JobProtoTest.EveryFieldIsReadOrListedAsUnimplemented.
TEST(CoverageTest, EveryUnimplementedFieldIsInTheList) {
  std::set<std::string> listed;
  for (const std::string name : rpc::kUnimplemented) listed.insert(name.substr(0, name.find(' ')));
  static const std::regex field_text("Unimplemented\\((?:StrCat\\()?\"([A-Za-z0-9]+\\.[a-z0-9_]+)");
  int fields = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(NIBBLE_SOURCE_DIR "/server/rpc")) {
    if (entry.path().extension() != ".cc") continue;
    const std::string code = Read(entry.path().lexically_relative(NIBBLE_SOURCE_DIR));
    for (std::sregex_iterator it(code.begin(), code.end(), field_text), last; it != last; ++it, ++fields) {
      EXPECT_TRUE(listed.contains((*it)[1])) << entry.path() << ": " << (*it)[1];
    }
  }
  EXPECT_GE(fields, 7);
}

// Maps each field of a message ("JobSpec.resume_from") to the comment above it.
std::map<std::string, std::string> FieldComments() {
  static const std::regex message_text("message (\\w+) \\{"),
      field_text("(?:optional |repeated )?[\\w.<>, ]+? (\\w+) = \\d+.*");
  std::map<std::string, std::string> comments;
  for (const auto& entry : std::filesystem::directory_iterator(NIBBLE_SOURCE_DIR "/proto/nibble/v1")) {
    std::istringstream text(Read(entry.path().lexically_relative(NIBBLE_SOURCE_DIR)));
    std::string message, comment;
    for (std::string line; std::getline(text, line);) {
      line.erase(0, line.find_first_not_of(' '));
      std::smatch match;
      if (line.starts_with("//")) {
        comment += line;
        continue;
      }
      if (std::regex_search(line, match, message_text)) message = match[1];
      if (std::regex_match(line, match, field_text)) comments[message + "." + match[1].str()] = comment;
      comment.clear();
    }
  }
  return comments;
}

TEST(CoverageTest, ProtoOfEveryUnimplementedFieldSaysUnimplemented) {
  const auto comments = FieldComments();
  int fields = 0;
  for (const std::string entry : rpc::kUnimplemented) {
    const std::string name = entry.substr(0, entry.find(' '));
    if (name.starts_with("nibble.v1.") || name.starts_with("ListOperationsRequest."))
      continue;  // methods; Google's own proto
    ASSERT_TRUE(comments.contains(name)) << name;
    EXPECT_NE(comments.at(name).find("UNIMPLEMENTED"), std::string::npos) << name << ": " << comments.at(name);
    ++fields;
  }
  EXPECT_GT(fields, 25);
}

// Adds the literals in capitals among the arguments of WithReason, up to the parenthesis that ends them.
void AddReasons(const std::string& code, std::set<std::string>& reasons) {
  static const std::string call_start = "WithReason(";
  static const std::regex literal("\"([A-Z][A-Z0-9_]+)\"");
  for (std::size_t at = code.find(call_start); at != std::string::npos; at = code.find(call_start, at + 1)) {
    std::size_t end = at + call_start.size();
    for (int open = 1; end < code.size() && open > 0; ++end) open += (code[end] == '(') - (code[end] == ')');
    const std::string arguments = code.substr(at, end - at);
    for (std::sregex_iterator it(arguments.begin(), arguments.end(), literal), last; it != last; ++it)
      reasons.insert((*it)[1]);
  }
}

TEST(ErrorsDocumentTest, EveryReasonOfTheServerIsInDocsErrors) {
  const std::string document = Read("docs/errors.md");
  std::set<std::string> reasons;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(NIBBLE_SOURCE_DIR "/server")) {
    const std::string path = entry.path().lexically_relative(NIBBLE_SOURCE_DIR);
    if (path.ends_with(".cc") || path.ends_with(".h")) AddReasons(Read(path), reasons);
  }
  EXPECT_GT(reasons.size(), 30u);
  for (const std::string& reason : reasons) EXPECT_NE(document.find("`" + reason + "`"), std::string::npos) << reason;
}

// The reasons in the first cells of the tables before the table of tests.
std::set<std::string> ReasonsOfTheTables() {
  const std::string document = Read(kErrors);
  std::istringstream text(document.substr(0, document.find(kErrorTests)));
  static const std::regex quoted("`([A-Z_]+)`");
  std::set<std::string> reasons;
  for (std::string line; std::getline(text, line);) {
    if (!line.starts_with("| `")) continue;
    const std::string cell = line.substr(0, line.find(" | "));
    for (std::sregex_iterator it(cell.begin(), cell.end(), quoted), last; it != last; ++it) reasons.insert((*it)[1]);
  }
  return reasons;
}

TEST(ErrorsDocumentTest, EveryReasonHasACaseOverTheWireOrARowThatNamesItsTest) {
  const std::string cases = Read("tests/server/rpc/error_details_test.cc") + Read("tests/server/rpc/data_loss_test.cc");
  const auto elsewhere = Rows(kErrors, kErrorTests);
  const auto reasons = ReasonsOfTheTables();
  EXPECT_GT(reasons.size(), 60u);
  for (const std::string& reason : reasons) {
    const bool here = cases.find("\"" + reason + "\"") != std::string::npos;
    EXPECT_TRUE(here || elsewhere.contains(reason)) << reason << " has no case and no row";
  }
  for (const auto& [reason, citations] : elsewhere)
    EXPECT_TRUE(reasons.contains(reason)) << reason << " is in no table";
}

}  // namespace
}  // namespace nibble
