#include "server/jobs/database_rows.h"

#include "server/base/error.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::jobs {

namespace {

// For TextMemo: makes a parser of text from a parser of JSON.
template <typename Parsed>
auto OfText(absl::StatusOr<Parsed> (*parse)(const base::Json&)) {
  return [parse](const std::string& text) -> absl::StatusOr<Parsed> {
    NIBBLE_ASSIGN_OR_RETURN(const base::Json json, base::ParseJson(text));
    return parse(json);
  };
}

absl::StatusOr<StoredJob> Parse(const JobRow& row, RowMemo& memo) {
  StoredJob job;
  job.id = row.id;
  job.number = row.number;
  NIBBLE_ASSIGN_OR_RETURN(job.state, ParseJobState(row.state));
  job.attempt = row.attempt;
  job.retries = row.retries;
  NIBBLE_ASSIGN_OR_RETURN(const auto spec, memo.specs.Get(row.spec, OfText(ParseJobSpec)));
  job.spec = *spec;
  NIBBLE_ASSIGN_OR_RETURN(const auto digests, memo.digests.Get(row.digests, OfText(ParseJobDigests)));
  job.digests = *digests;
  if (!row.error.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(const base::Json json, base::ParseJson(row.error));
    JobError error;
    NIBBLE_ASSIGN_OR_RETURN(error.code, base::GetString(json, "code", "error"));
    NIBBLE_ASSIGN_OR_RETURN(error.reason, base::GetString(json, "reason", "error"));
    NIBBLE_ASSIGN_OR_RETURN(error.message, base::GetString(json, "message", "error"));
    if (const auto metadata = json.find("metadata"); metadata != json.end() && metadata->is_object()) {
      for (const auto& [key, value] : metadata->items()) {
        NIBBLE_ASSIGN_OR_RETURN(error.metadata[key], base::GetString(*metadata, key, "error.metadata"));
      }
    }
    job.error = error;
  }
  NIBBLE_ASSIGN_OR_RETURN(job.progress, base::ParseJson(row.progress));
  job.output_digest = row.output_digest;
  job.published = row.published != 0;
  job.last_sequence = row.last_sequence;
  job.memory_bytes = row.memory_bytes;
  job.disk_bytes = row.disk_bytes;
  job.keep_checkpoint = row.keep_checkpoint != 0;
  job.lost_in_row = row.lost_in_row;
  job.owner = row.owner;
  job.tenant = row.tenant;
  job.created = absl::FromUnixMicros(row.created_us);
  if (row.started_us != 0) job.started = absl::FromUnixMicros(row.started_us);
  if (row.ended_us != 0) job.ended = absl::FromUnixMicros(row.ended_us);
  return job;
}

}  // namespace

absl::Status NoCheckpoint(const std::string& name) {
  return base::WithReason(absl::NotFoundError(base::StrCat("there is no checkpoint \"", name.substr(0, 128), "\"")),
                          "CHECKPOINT", {{"name", name.substr(0, 128)}});
}

absl::Status NoJob(const std::string& id) {
  return base::WithReason(absl::NotFoundError(base::StrCat("there is no job \"", id, "\"")), "JOB", {{"name", id}});
}

std::string Etag(const StoredJob& job) { return base::StrCat(Name(job.state), "-", job.attempt); }

absl::Status CheckEtag(const StoredJob& job, const IfEtag& etag) {
  if (!etag.has_value() || *etag == Etag(job)) return absl::OkStatus();
  return base::WithReason(absl::AbortedError(base::StrCat("etag: does not match, the job has ", Etag(job))),
                          "ETAG_MISMATCH", {{"etag", Etag(job)}});
}

base::Json ToJson(const JobError& error) {
  base::Json json = base::Json::object();
  json["code"] = error.code;
  json["reason"] = error.reason;
  json["message"] = error.message;
  if (!error.metadata.empty()) json["metadata"] = error.metadata;
  return json;
}

JobRow ToRow(const StoredJob& job) {
  JobRow row;
  row.id = job.id;
  row.state = Name(job.state);
  row.spec = base::Dump(ToJson(job.spec));
  row.created_us = absl::ToUnixMicros(job.created);
  row.memory_bytes = job.memory_bytes;
  row.disk_bytes = job.disk_bytes;
  row.priority = job.spec.run.priority;
  row.owner = job.owner;
  row.tenant = job.tenant;
  row.digests = base::Dump(ToJson(job.digests));
  return row;
}

absl::StatusOr<StoredJob> FromRow(const JobRow& row, RowMemo& memo) {
  auto job = Parse(row, memo);
  if (!job.ok()) {
    return absl::DataLossError(base::StrCat("database: damaged row of job ", row.id, ": ", job.status().message()));
  }
  return job;
}

}  // namespace nibble::jobs
