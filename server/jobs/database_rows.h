// Converts between a job and its row in table jobs. For database.cc.
#pragma once
#include <string>

#include "absl/status/statusor.h"
#include "server/base/json.h"
#include "server/jobs/stored_job.h"
#include "server/jobs/text_memo.h"

namespace nibble::jobs {

// In the order in which OpenJobs (database_session.h) reads them.
inline constexpr char kJobColumns[] =
    "number, id, state, attempt, retries, spec, error, progress, output_digest, published, last_sequence, created_us, "
    "started_us, ended_us, memory_bytes, keep_checkpoint, lost_in_row, disk_bytes, owner, tenant, digests";

struct JobRow {
  long long number = 0;
  std::string id, state;
  long long attempt = 0, retries = 0;
  std::string spec, error, progress, output_digest;
  long long published = 0, last_sequence = 0, created_us = 0, started_us = 0, ended_us = 0, memory_bytes = 0,
            keep_checkpoint = 0;
  long long lost_in_row = 0, disk_bytes = 0;
  long long priority = 0;  // written only: copied from the spec
  std::string owner, tenant, digests;
};

JobRow ToRow(const StoredJob& job);

// Parsed specs and digests of jobs, which never change.
struct RowMemo {
  TextMemo<JobSpec> specs;
  TextMemo<JobDigests> digests;
};
absl::StatusOr<StoredJob> FromRow(const JobRow& row, RowMemo& memo);  // DataLoss if the row is damaged

base::Json ToJson(const JobError& error);

}  // namespace nibble::jobs
