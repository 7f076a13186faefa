// Renders messages as JSON with the documented keys of the command line, and as text for people.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "client/cli/terminal.h"
#include "nibble/v1/dataset_service.pb.h"
#include "nibble/v1/fine_tune_service.pb.h"
#include "nibble/v1/inference_service.pb.h"
#include "nibble/v1/model_service.pb.h"
#include "nibble/v1/server_service.pb.h"
#include "server/base/json.h"

namespace nibble::cli {

base::Json TimeJson(bool has, const google::protobuf::Timestamp& time);  // null when unset

base::Json DatasetJson(const v1::Dataset& dataset);
base::Json PreviewJson(const v1::PreviewDatasetResponse& preview);
// The text of a row for people, with each run of trained tokens between `open` and `close`.
std::string MarkedText(const v1::PreviewRow& row, std::string_view open, std::string_view close);
std::string LinesOf(const v1::RowWarning& warning);  // " (lines 4, 9)"; "" without line numbers

base::Json ModelJson(const v1::Model& model);
base::Json ResidentsJson(const v1::Residents& residents);
base::Json VerifyJson(const std::string& model, const v1::VerifyModelResponse& verify);
base::Json FilesJson(const std::vector<v1::FileEntry>& files);

base::Json CheckpointJson(const v1::Checkpoint& checkpoint);
base::Json JobJson(const v1::Job& job);
base::Json PlanJson(const v1::PlanJobResponse& plan);
std::string LinesOf(const v1::Warning& warning);  // same text as for a v1::RowWarning
base::Json EventJson(const std::string& job, const v1::JobEvent& event);
std::string EventLine(const v1::JobEvent& event);  // for people
std::string MethodName(const v1::JobSpec& spec);   // "qlora"; empty if the method is unset

base::Json UsageJson(const v1::Usage& usage);
// One row per token: its quoted text, id and logprob, and the alternatives with theirs. Bytes of incomplete characters
// appear as \x escapes.
Table LogprobTable(const google::protobuf::RepeatedPtrField<v1::TokenLogprob>& tokens);
base::Json TokenLogprobsJson(const google::protobuf::RepeatedPtrField<v1::TokenLogprob>& tokens);
// `logprobs`: include the logprobs of the tokens.
base::Json GenerateJson(const v1::GenerateResponse& response, bool logprobs);
base::Json ScoreJson(const v1::ScoreResponse& score);

base::Json ServerInfoJson(const v1::ServerInfo& info);
base::Json ServerLoadJson(const v1::ServerLoad& load);

}  // namespace nibble::cli
