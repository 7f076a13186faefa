// The schema of nibble.db, one migration step per version. Never change a step that has landed; add a new one at the
// end, to kMigrations too.
#pragma once
#include <string_view>

#include "absl/types/span.h"

namespace nibble::jobs {

// kFromVersionN: the SQL that takes version N to N + 1. Times are microseconds since 1970, 0 for "not yet".
inline constexpr std::string_view kFromVersion0[] = {
    R"(CREATE TABLE jobs (
               number INTEGER PRIMARY KEY AUTOINCREMENT,
               id TEXT NOT NULL UNIQUE,
               state TEXT NOT NULL,
               attempt INTEGER NOT NULL,
               retries INTEGER NOT NULL,
               spec TEXT NOT NULL,
               error TEXT NOT NULL,
               progress TEXT NOT NULL,
               output_digest TEXT NOT NULL,
               published INTEGER NOT NULL,
               last_sequence INTEGER NOT NULL,
               created_us INTEGER NOT NULL,
               started_us INTEGER NOT NULL,
               ended_us INTEGER NOT NULL))",        "CREATE INDEX jobs_by_state ON jobs (state, number)",
    R"(CREATE TABLE attempts (
               job_id TEXT NOT NULL,
               attempt INTEGER NOT NULL,
               token TEXT NOT NULL,
               state TEXT NOT NULL,
               pid INTEGER NOT NULL,
               start_ticks INTEGER NOT NULL,
               PRIMARY KEY (job_id, attempt)))",
    R"(CREATE TABLE events (
               job_id TEXT NOT NULL,
               sequence INTEGER NOT NULL,
               attempt INTEGER NOT NULL,
               attempt_sequence INTEGER,
               type TEXT NOT NULL,
               time_us INTEGER NOT NULL,
               body TEXT NOT NULL,
               PRIMARY KEY (job_id, sequence),
               UNIQUE (job_id, attempt, attempt_sequence)))",
    R"(CREATE TABLE idempotency (
               request_id TEXT NOT NULL PRIMARY KEY,
               body_digest TEXT NOT NULL,
               job_id TEXT NOT NULL,
               created_us INTEGER NOT NULL))",
};

inline constexpr std::string_view kFromVersion1[] = {
    "ALTER TABLE jobs ADD COLUMN method TEXT NOT NULL DEFAULT 'qlora'",
    "ALTER TABLE jobs ADD COLUMN memory_bytes INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE jobs ADD COLUMN keep_checkpoint INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE jobs ADD COLUMN owner TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE jobs ADD COLUMN tenant TEXT NOT NULL DEFAULT ''",
    "CREATE INDEX jobs_by_owner ON jobs (owner, state)",
    "CREATE INDEX idempotency_by_age ON idempotency (created_us)",
};

inline constexpr std::string_view kFromVersion2[] = {
    "ALTER TABLE jobs ADD COLUMN digests TEXT NOT NULL DEFAULT '{}'",
};

// Adds the tenant to the key of a request (RequestKey in controller.cc). Before this step, owners with the
// same name in different tenants counted as one owner.
inline constexpr std::string_view kFromVersion3[] = {
    R"(UPDATE idempotency
             SET request_id = char(10) || (SELECT tenant FROM jobs WHERE id = job_id) || char(10) || request_id
             WHERE job_id IN (SELECT id FROM jobs WHERE owner <> '' AND tenant <> ''))",
};

// The tenant of a deleted job is unknown. Until the job's request id is forgotten, the id counts for the
// owner in every tenant (KeyWithoutTenant in database_writes.cc).
inline constexpr std::string_view kFromVersion4[] = {
    R"(UPDATE OR IGNORE idempotency SET request_id = char(10) || char(10) || request_id
             WHERE instr(request_id, char(10)) > 1 AND job_id NOT IN (SELECT id FROM jobs))",
};

// Columns that lists filter and order by, copied from the spec, which never changes. So a list parses only
// the specs that it returns (job_query.cc).
inline constexpr std::string_view kFromVersion5[] = {
    "ALTER TABLE jobs ADD COLUMN priority INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE jobs ADD COLUMN base_model TEXT NOT NULL DEFAULT ''",
    R"(UPDATE jobs SET priority = COALESCE(json_extract(spec, '$.run.priority'), 0),
                             base_model = COALESCE(json_extract(spec, '$.base_model'), '')
             WHERE json_valid(spec))",
    R"(CREATE TABLE job_labels (
               key TEXT NOT NULL,
               value TEXT NOT NULL,
               number INTEGER NOT NULL,
               PRIMARY KEY (key, value, number)) WITHOUT ROWID)",
    R"(INSERT INTO job_labels (key, value, number)
             SELECT label.key, label.value, jobs.number
             FROM jobs, json_each(CASE WHEN json_valid(spec) THEN spec ELSE '{}' END, '$.labels') AS label
             WHERE label.type = 'text')",
    "CREATE INDEX job_labels_by_job ON job_labels (number)",
    "CREATE INDEX jobs_by_tenant ON jobs (tenant, number)",
    "CREATE INDEX jobs_by_tenant_state ON jobs (tenant, state, number)",
    "CREATE INDEX jobs_by_base ON jobs (base_model, number)",
    "CREATE INDEX jobs_by_tenant_base ON jobs (tenant, base_model, number)",
    "CREATE INDEX jobs_queue ON jobs (priority, number, id, memory_bytes, attempt, state) WHERE state = 'QUEUED'",
    "CREATE INDEX jobs_unpublished ON jobs (number) WHERE state = 'SUCCEEDED' AND published = 0",
};

// Number of attempts lost in a row, and the count of OOM kills when an attempt began (oom_watch.h).
inline constexpr std::string_view kFromVersion6[] = {
    "ALTER TABLE jobs ADD COLUMN lost_in_row INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE attempts ADD COLUMN oom_group TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE attempts ADD COLUMN oom_kills INTEGER NOT NULL DEFAULT 0",
};

// Jobs by method and state, counted as they change: a scrape must not read all jobs.
inline constexpr std::string_view kFromVersion7[] = {
    R"(CREATE TABLE job_counts (
               method TEXT NOT NULL,
               state TEXT NOT NULL,
               count INTEGER NOT NULL,
               PRIMARY KEY (method, state)) WITHOUT ROWID)",
    "INSERT INTO job_counts SELECT method, state, COUNT(*) FROM jobs GROUP BY method, state",
    R"(CREATE TRIGGER count_new_job AFTER INSERT ON jobs BEGIN
               INSERT INTO job_counts VALUES (NEW.method, NEW.state, 1) ON CONFLICT (method, state) DO UPDATE SET count = count + 1;
             END)",
    R"(CREATE TRIGGER count_moved_job AFTER UPDATE OF state ON jobs BEGIN
               UPDATE job_counts SET count = count - 1 WHERE method = OLD.method AND state = OLD.state;
               INSERT INTO job_counts VALUES (NEW.method, NEW.state, 1) ON CONFLICT (method, state) DO UPDATE SET count = count + 1;
             END)",
    R"(CREATE TRIGGER count_deleted_job AFTER DELETE ON jobs BEGIN
               UPDATE job_counts SET count = count - 1 WHERE method = OLD.method AND state = OLD.state;
             END)",
    // For retention (database_retention.h).
    "CREATE INDEX jobs_by_end ON jobs (ended_us) WHERE ended_us > 0",
    "ALTER TABLE jobs ADD COLUMN steps_kept INTEGER NOT NULL DEFAULT 9223372036854775807",
    "CREATE INDEX jobs_by_steps_kept ON jobs (steps_kept, number) WHERE ended_us > 0",
    "CREATE TABLE deleted_jobs (job_id TEXT NOT NULL PRIMARY KEY) WITHOUT ROWID",
};

// When each principal last started a job, and since when a job is in the queue: principals take turns, and
// jobs age (policy.h). No two starts have the same time: each is at least a microsecond later than the one
// before.
inline constexpr std::string_view kFromVersion8[] = {
    R"(CREATE TABLE principal_starts (
               tenant TEXT NOT NULL,
               owner TEXT NOT NULL,
               started_us INTEGER NOT NULL,
               PRIMARY KEY (tenant, owner)) WITHOUT ROWID)",
    R"(INSERT INTO principal_starts SELECT tenant, owner, MAX(started_us) FROM jobs WHERE started_us > 0
       GROUP BY tenant, owner)",
    "CREATE INDEX principal_starts_by_time ON principal_starts (started_us)",
    "ALTER TABLE jobs ADD COLUMN queued_us INTEGER NOT NULL DEFAULT 0",
    "UPDATE jobs SET queued_us = created_us",
    "DROP INDEX jobs_queue",
    R"(CREATE INDEX jobs_queue ON jobs (priority, number, id, memory_bytes, owner, tenant, queued_us, attempt, state)
       WHERE state = 'QUEUED')",
};

// Planned size of a job's files, reserved while it runs (disk_admission.h). Jobs of older servers reserve
// nothing.
inline constexpr std::string_view kFromVersion9[] = {
    "ALTER TABLE jobs ADD COLUMN disk_bytes INTEGER NOT NULL DEFAULT 0",
    "DROP INDEX jobs_queue",
    "CREATE INDEX jobs_queue ON jobs (priority, number, id, memory_bytes, disk_bytes, owner, tenant, queued_us, "
    "attempt, state) "
    "WHERE state = 'QUEUED'",
};

// Handles of trainers (runner.h) instead of processes. A local trainer's handle is "PID/START_TICKS".
inline constexpr std::string_view kFromVersion10[] = {
    "ALTER TABLE attempts ADD COLUMN handle TEXT NOT NULL DEFAULT ''",
    "UPDATE attempts SET handle = pid || '/' || start_ticks WHERE pid <> 0",
    "ALTER TABLE attempts DROP COLUMN pid",
    "ALTER TABLE attempts DROP COLUMN start_ticks",
};

// kMigrations[v] takes version v to v + 1.
inline constexpr absl::Span<const std::string_view> kMigrations[] = {
    kFromVersion0, kFromVersion1, kFromVersion2, kFromVersion3, kFromVersion4,  kFromVersion5,
    kFromVersion6, kFromVersion7, kFromVersion8, kFromVersion9, kFromVersion10,
};

}  // namespace nibble::jobs
