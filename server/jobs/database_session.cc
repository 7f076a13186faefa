#include "server/jobs/database_session.h"

#include <fcntl.h>
#include <soci/sqlite3/soci-sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <string_view>

#include "server/base/error.h"
#include "server/base/log.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"
#include "server/jobs/database_backup.h"
#include "server/jobs/database_schema.h"

namespace nibble::jobs {

using base::StrCat;
using soci::into;
using soci::use;

namespace {

constexpr mode_t kFileMode = 0640;  // holds specs and request ids of all tenants

// Creates the file, because SQLite would create it with mode 0644, and removes other users' access to files of earlier
// servers. SQLite creates its journals with the mode of the file.
void HideFromOthers(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, kFileMode);
  if (file >= 0) ::close(file);  // SQLite reports it if the file cannot be opened
  for (const char* suffix : {"", "-wal", "-shm", "-journal"}) {
    const std::string name = path + suffix;
    struct stat info{};
    if (::stat(name.c_str(), &info) != 0 || (info.st_mode & 0777 & ~kFileMode) == 0) continue;
    if (::chmod(name.c_str(), info.st_mode & kFileMode) != 0) {
      base::LogWarning("cannot remove other users' access to the database",
                       {{"file", name}, {"error", std::strerror(errno)}});
    }
  }
}

absl::Status Migrate(soci::session& session, const std::string& path) {
  const long long wanted = static_cast<long long>(std::size(kMigrations));
  session << "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)";
  long long version = 0, rows = 0;
  session << "SELECT COUNT(*), COALESCE(MAX(version), 0) FROM schema_version", into(rows), into(version);
  if (version > wanted) {
    return absl::FailedPreconditionError(StrCat("database: its schema version is ", version,
                                                ", this nibbled supports up to ", wanted,
                                                ": it was written by a newer one"));
  }
  if (version > 0 && version < wanted) NIBBLE_RETURN_IF_ERROR(BackUp(session, path, version, base::RealFileSystem()));
  for (; version < wanted; ++version) {
    soci::transaction transaction(session);
    for (const std::string_view sql : kMigrations[static_cast<std::size_t>(version)]) session << std::string(sql);
    const long long reached = version + 1;
    session << "DELETE FROM schema_version";
    session << "INSERT INTO schema_version (version) VALUES (:v)", use(reached);
    transaction.commit();
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FromSoci(const std::exception& error) {
  int code = SQLITE_ERROR;
  if (const auto* sqlite = dynamic_cast<const soci::sqlite3_soci_error*>(&error)) {
    code = sqlite->result() & 0xff;  // the low byte of an extended result code is the primary code
  }
  // Clients see these messages, except those of DataLoss and Internal. SOCI's text quotes the SQL and its values, so
  // only the log and the Internal error have it.
  base::LogWarning("database", {{"error", error.what()}});
  switch (code) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED: return absl::UnavailableError("database: it is locked");
    case SQLITE_FULL:
      return base::WithReason(absl::ResourceExhaustedError("database: there is no room on the disk"), "DISK_FULL");
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB: return absl::DataLossError("database: its file is damaged");
    default: return absl::InternalError(StrCat("database: ", error.what()));
  }
}

absl::Status OpenSession(soci::session& session, const std::string& path) {
  if (path.find('"') != std::string::npos) {
    return absl::InvalidArgumentError("the path of a state directory must not contain '\"'");
  }
  HideFromOthers(path);
  session.open(soci::sqlite3, StrCat("db=\"", path, "\" timeout=5"));
  std::string mode;
  session << "PRAGMA journal_mode=WAL", into(mode);
  if (mode != "wal") return absl::InternalError(StrCat("database: ", path, " cannot use WAL, got ", mode));
  session << "PRAGMA synchronous=FULL";
  return Migrate(session, path);
}

void OpenJobs(soci::statement& select, const std::string& where, JobRow& row) {
  select.exchange(into(row.number));
  for (std::string* text : {&row.id, &row.state}) select.exchange(into(*text));
  for (long long* number : {&row.attempt, &row.retries}) select.exchange(into(*number));
  for (std::string* text : {&row.spec, &row.error, &row.progress, &row.output_digest}) select.exchange(into(*text));
  for (long long* number : {&row.published, &row.last_sequence, &row.created_us, &row.started_us, &row.ended_us,
                            &row.memory_bytes, &row.keep_checkpoint, &row.lost_in_row, &row.disk_bytes}) {
    select.exchange(into(*number));
  }
  for (std::string* text : {&row.owner, &row.tenant, &row.digests}) select.exchange(into(*text));
  select.alloc();
  select.prepare(StrCat("SELECT ", kJobColumns, " FROM jobs ", where));
  select.define_and_bind();
  select.execute();
}

}  // namespace nibble::jobs
