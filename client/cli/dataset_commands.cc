#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "client/cli/app.h"
#include "client/cli/command.h"
#include "client/cli/dataset_file.h"
#include "client/cli/message_json.h"
#include "client/cli/render.h"
#include "server/base/human_bytes.h"
#include "server/base/ids.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::cli {
namespace {

using v1::DatasetService;

// `places`: where the rows are in the user's file if that file was converted, else null.
std::string WarningLine(const v1::RowWarning& warning, const RowPlaces* places) {
  std::string where = LinesOf(warning);
  if (places != nullptr && !warning.row_ids().empty()) {
    std::vector<std::int64_t> found;
    for (const std::int64_t row : warning.row_ids()) found.push_back(places->Of(row));
    where = base::StrCat(" (", places->Text(absl::StrJoin(found, ", ")), ")");
  }
  return base::StrCat("warning: ", Printable(warning.message()), where, " (", Printable(warning.reason()), ")\n");
}

absl::Status Upload(Session& session, const std::string& file, const std::string& name,
                    const std::optional<std::string>& format, const std::optional<std::string>& resume) {
  NIBBLE_RETURN_IF_ERROR(base::CheckName("name", name));
  if (resume.has_value()) NIBBLE_RETURN_IF_ERROR(base::CheckName("resume", *resume));
  v1::UploadDatasetHeader header;
  header.set_name(name);
  const std::string upload_id = resume.value_or(base::NewId("upload"));
  header.set_upload_id(upload_id);
  if (resume.has_value()) header.set_resume_offset(0);  // any value resumes: UploadDataset asks the server for it
  std::optional<ConvertedFile> converted;
  if (!format.has_value()) {
    NIBBLE_RETURN_IF_ERROR(CheckIsJsonLines(file));
  } else if (IsForeignFormat(*format)) {
    NIBBLE_ASSIGN_OR_RETURN(ConvertedFile rows, ToJsonLines(file, *format));
    converted.emplace(std::move(rows));
  } else {
    header.set_format(*format == "text"   ? v1::DATASET_FORMAT_TEXT
                      : *format == "chat" ? v1::DATASET_FORMAT_CHAT
                                          : v1::DATASET_FORMAT_PROMPT_COMPLETION);
  }
  Progress progress(session.terminal);
  const auto uploaded =
      session.client().UploadDataset(converted.has_value() ? converted->path() : file, header, progress.Show());
  if (!uploaded.ok()) {
    if (converted.has_value()) return WithResumeHint(converted->places().Translated(uploaded.status()), upload_id);
    return WithResumeHint(uploaded.status(), upload_id);
  }
  const v1::Dataset& dataset = *uploaded;
  progress.End();
  if (session.json) {
    session.Print(DatasetJson(dataset));
  } else {
    session.out() << Printable(dataset.name()) << ": " << dataset.rows() << " rows, " << Lower(dataset.format()) << ", "
                  << base::HumanBytes(dataset.bytes()) << '\n';
    for (const v1::RowWarning& warning : dataset.warnings()) {
      session.out() << WarningLine(warning, converted.has_value() ? &converted->places() : nullptr);
    }
  }
  return absl::OkStatus();
}

absl::Status Preview(Session& session, const std::string& name, const std::string& model, std::int32_t rows) {
  NIBBLE_RETURN_IF_ERROR(CheckText("dataset", name));
  NIBBLE_RETURN_IF_ERROR(CheckText("model", model));
  v1::PreviewDatasetRequest request;
  request.set_dataset(name);
  request.set_model(model);
  request.set_n(rows);
  NIBBLE_ASSIGN_OR_RETURN(const auto preview,
                          session.client().LongCall(&DatasetService::Stub::PreviewDataset, request));
  if (session.json) {
    session.Print(PreviewJson(preview));
    return absl::OkStatus();
  }
  const bool colour = session.terminal.out_is_tty;
  if (!preview.rows().empty()) session.out() << (colour ? "trained tokens are green\n" : "trained tokens are in [ ]\n");
  for (const auto& row : preview.rows()) {
    int trained = 0;
    for (const bool bit : row.trained()) trained += bit ? 1 : 0;
    session.out() << "--- row " << row.row() << ": " << row.token_ids_size() << " tokens, " << trained << " trained";
    if (row.truncated_tokens() > 0) session.out() << ", " << row.truncated_tokens() << " truncated";
    session.out() << '\n' << MarkedText(row, colour ? "\x1b[32m" : "[", colour ? "\x1b[0m" : "]") << '\n';
  }
  session.out() << preview.rows_size() << " of " << preview.total_rows() << " rows\n";
  for (const v1::RowWarning& warning : preview.warnings()) session.out() << WarningLine(warning, nullptr);
  return absl::OkStatus();
}

absl::Status List(Session& session) {
  base::Json list = base::Json::array();
  Table table({"NAME", "FORMAT", "ROWS", "SIZE"});
  const v1::ListDatasetsRequest all;
  NIBBLE_RETURN_IF_ERROR(ForEachPage(session, &DatasetService::Stub::ListDatasets, all, [&](const auto& page) {
    for (const v1::Dataset& dataset : page.datasets()) {
      list.push_back(DatasetJson(dataset));
      table.Add({dataset.name(), dataset.damaged() ? "damaged" : Lower(dataset.format()), base::StrCat(dataset.rows()),
                 base::HumanBytes(dataset.bytes())});
    }
    return true;
  }));
  PrintList(session, "datasets", std::move(list), table);
  return absl::OkStatus();
}

absl::Status Download(Session& session, const std::string& name, const std::string& out) {
  Progress progress(session.terminal);
  NIBBLE_ASSIGN_OR_RETURN(const std::int64_t bytes, session.client().DownloadDataset(name, out, progress.Show()));
  progress.End();
  if (session.json) {
    session.Print({{"name", name}, {"out", out}, {"bytes", bytes}});
  } else {
    session.out() << out << ": " << base::HumanBytes(bytes) << '\n';
  }
  return absl::OkStatus();
}

absl::Status Delete(Session& session, const std::string& name) {
  return DeleteNamed(session, &DatasetService::Stub::DeleteDataset, "name", name);
}

}  // namespace

void AddDatasetCommands(CLI::App& app, Session& session) {
  CLI::App& datasets = *app.add_subcommand("datasets", "Upload, preview, download, list and delete training data");
  datasets.require_subcommand(1);
  {
    CLI::App* sub = datasets.add_subcommand("upload", "Upload a local file of rows");
    struct Options {
      std::string file, name;
      std::optional<std::string> format, resume;
    };
    auto o = std::make_shared<Options>();
    sub->add_option("FILE", o->file, "JSON lines, a text (--format text), or a file of another format (--format)")
        ->required();
    sub->add_option("--name", o->name, "Name of the new dataset")->required();
    sub->add_option("--format", o->format,
                    "Format of the rows (default: detected from the first row). json (an array), csv, alpaca and "
                    "sharegpt are converted; the rows of the last two become chats")
        ->check(CLI::IsMember({"text", "prompt_completion", "chat", "json", "csv", "alpaca", "sharegpt"}));
    sub->add_option("--resume", o->resume, "Id of an interrupted upload to continue (see: nibble uploads list)");
    sub->callback([&session, o] {
      session.command = [&session, o] { return Upload(session, o->file, o->name, o->format, o->resume); };
    });
  }
  {
    CLI::App* sub = datasets.add_subcommand("preview", "Show the first rows as training would see them");
    struct Options {
      std::string name, model;
      std::int32_t rows = 3;
    };
    auto o = std::make_shared<Options>();
    sub->add_option("NAME", o->name, "Dataset")->required();
    sub->add_option("--model", o->model, "Model whose tokenizer and chat template to use")->required();
    sub->add_option("-n", o->rows, "Number of rows")->capture_default_str();
    sub->callback(
        [&session, o] { session.command = [&session, o] { return Preview(session, o->name, o->model, o->rows); }; });
  }
  {
    CLI::App* sub = datasets.add_subcommand("download", "Write the rows of a dataset to a local file");
    struct Options {
      std::string name, out;
    };
    auto o = std::make_shared<Options>();
    sub->add_option("NAME", o->name, "Dataset")->required();
    sub->add_option("--out", o->out, "File to write; an existing file is replaced")->required();
    sub->callback([&session, o] { session.command = [&session, o] { return Download(session, o->name, o->out); }; });
  }
  AddCommand(datasets, session, "list", "List all datasets", &List);
  AddCommandOn(datasets, session, "delete", "Delete a dataset", "NAME", "Dataset", &Delete);
}

}  // namespace nibble::cli
