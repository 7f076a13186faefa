// The schema of nibble.db, one step a version. A step never changes once it has landed: add the next one.
#pragma once
#include <string_view>
#include <vector>

namespace nibble::jobs {

// migrations[v] takes version v to v + 1. Times are microseconds since 1970, 0 for "not yet".
inline const std::vector<std::vector<std::string_view>>& Migrations() {
  static const std::vector<std::vector<std::string_view>> migrations = {
      {
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
               ended_us INTEGER NOT NULL))",
          "CREATE INDEX jobs_by_state ON jobs (state, number)",
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
      },
      {
          "ALTER TABLE jobs ADD COLUMN method TEXT NOT NULL DEFAULT 'qlora'",
          "ALTER TABLE jobs ADD COLUMN memory_bytes INTEGER NOT NULL DEFAULT 0",
          "ALTER TABLE jobs ADD COLUMN keep_checkpoint INTEGER NOT NULL DEFAULT 0",
          "ALTER TABLE jobs ADD COLUMN owner TEXT NOT NULL DEFAULT ''",
          "ALTER TABLE jobs ADD COLUMN tenant TEXT NOT NULL DEFAULT ''",
          "CREATE INDEX jobs_by_owner ON jobs (owner, state)",
          "CREATE INDEX idempotency_by_age ON idempotency (created_us)",
      },
      {
          "ALTER TABLE jobs ADD COLUMN digests TEXT NOT NULL DEFAULT '{}'",
      },
      {
          // The tenant joins the key of a request (RequestKey in controller.cc); before, a name was one owner in all tenants.
          R"(UPDATE idempotency
             SET request_id = char(10) || (SELECT tenant FROM jobs WHERE id = job_id) || char(10) || request_id
             WHERE job_id IN (SELECT id FROM jobs WHERE owner <> '' AND tenant <> ''))",
      },
      {
          // Of a job that was deleted nobody knows the tenant: until such a request is forgotten it is its owner's in all of them
          // (KeyWithoutTenant in database.cc).
          R"(UPDATE OR IGNORE idempotency SET request_id = char(10) || char(10) || request_id
             WHERE instr(request_id, char(10)) > 1 AND job_id NOT IN (SELECT id FROM jobs))",
      },
  };
  return migrations;
}

}  // namespace nibble::jobs
