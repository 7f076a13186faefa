#include "server/store/published_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <utility>

#include "server/base/error.h"
#include "server/base/ids.h"
#include "server/base/json.h"
#include "server/base/log.h"
#include "server/base/sha256.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::store {

using base::JoinPath;
using base::StrCat;

namespace {

constexpr std::uint64_t kMaxManifestBytes = 16u << 20;
constexpr std::size_t kMaxFiles = 100'000;
constexpr std::size_t kReadBytes = 1u << 20;

std::string Parent(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

absl::Status Invalid(const std::string& directory, std::string_view why) {
  return base::WithReason(absl::DataLossError(StrCat(directory, ": manifest.json ", why)), "MANIFEST_INVALID");
}

// A manifest is not trusted: its names must not lead out of the directory.
bool SafeRelativeName(std::string_view name) {
  if (name.empty() || name.front() == '/' || name.back() == '/' || name == kManifestFile) return false;
  std::size_t begin = 0;
  while (begin <= name.size()) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    if (part.empty() || part == "." || part == ".." || part.find('\0') != std::string_view::npos) return false;
    begin = end + 1;
  }
  return true;
}

bool IsSha256(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// Collects the regular files below `directory`, as sorted relative names, and all subdirectories. Refuses links.
absl::Status Walk(const std::string& directory, std::vector<std::string>& names, std::vector<std::string>& folders) {
  std::error_code error;
  std::filesystem::recursive_directory_iterator it(directory, error), end;
  for (; !error && it != end; it.increment(error)) {
    const std::string path = it->path().string();
    const auto kind = it->symlink_status(error).type();
    if (error) break;
    if (kind == std::filesystem::file_type::directory) {
      folders.push_back(path);
    } else if (kind == std::filesystem::file_type::regular) {
      names.push_back(path.substr(directory.size() + 1));
      if (names.size() > kMaxFiles) {
        return absl::InvalidArgumentError(StrCat(directory, " holds more than ", kMaxFiles, " files"));
      }
    } else {
      return absl::InvalidArgumentError(StrCat(path, " is neither a file nor a directory"));
    }
  }
  if (error) return absl::InternalError(StrCat("list ", directory, ": ", error.message()));
  std::sort(names.begin(), names.end());
  return absl::OkStatus();
}

}  // namespace

std::uint64_t Manifest::total_bytes() const {
  std::uint64_t total = 0;
  for (const ManifestEntry& file : files) total += file.size;
  return total;
}

absl::Time ModifiedTime(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 ? absl::TimeFromTimespec(info.st_mtim) : absl::UnixEpoch();
}

absl::StatusOr<ManifestEntry> HashFile(const std::string& path, const Cancelled& cancelled,
                                       const base::WrittenDigests& written) {
  if (auto known = written.Find(path); known.has_value()) {
    return ManifestEntry{.name = {}, .size = known->size, .sha256 = std::move(known->sha256)};
  }
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  const auto failed = [&path](std::string_view what) -> absl::Status {
    const std::string text = StrCat(what, " ", path, ": ", std::strerror(errno));
    if (errno == ENOENT) return absl::NotFoundError(text);
    if (errno == ELOOP || errno == ENOTDIR || errno == EISDIR) return absl::DataLossError(text);
    return absl::InternalError(text);
  };
  if (fd < 0) return failed("open");
  ManifestEntry entry;
  base::Sha256 sha;
  const auto buffer = std::make_unique<char[]>(kReadBytes);
  absl::Status status;
  while (true) {
    status = base::CheckCancelled(cancelled);
    if (!status.ok()) break;
    const ssize_t n = ::read(fd, buffer.get(), kReadBytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) status = failed("read");
    if (n <= 0) break;
    sha.Update(buffer.get(), static_cast<std::size_t>(n));
    entry.size += static_cast<std::uint64_t>(n);
  }
  ::close(fd);
  if (!status.ok()) return status;
  entry.sha256 = sha.HexDigest();
  return entry;
}

absl::StatusOr<Manifest> ReadManifest(base::FileSystem& files, const std::string& directory) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string text, files.Read(JoinPath(directory, kManifestFile), kMaxManifestBytes));
  auto json = base::ParseJson(text);
  if (!json.ok()) return Invalid(directory, StrCat("is ", json.status().message()));
  Manifest manifest;
  const auto version = base::GetInt(*json, "version", kManifestFile);
  if (!version.ok() || *version != 1 || !json->contains("files") || !(*json)["files"].is_array()) {
    return Invalid(directory, "has no file list of version 1");
  }
  std::set<std::string> seen;
  for (const base::Json& item : (*json)["files"]) {
    auto name = base::GetString(item, "name", kManifestFile);
    auto size = base::GetInt(item, "size", kManifestFile);
    auto sha256 = base::GetString(item, "sha256", kManifestFile);
    if (!name.ok() || !size.ok() || !sha256.ok()) return Invalid(directory, "has an incomplete entry");
    if (!SafeRelativeName(*name) || *size < 0 || !IsSha256(*sha256) || !seen.insert(*name).second) {
      return Invalid(directory, StrCat("has a bad entry for \"", *name, "\""));
    }
    manifest.files.push_back({*name, static_cast<std::uint64_t>(*size), *sha256});
  }
  manifest.digest = base::Sha256Hex(text);
  return manifest;
}

absl::StatusOr<Manifest> CheckSizes(base::FileSystem& files, const std::string& directory) {
  NIBBLE_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(files, directory));
  for (const ManifestEntry& file : manifest.files) {
    const auto size = files.Size(JoinPath(directory, file.name));
    if (absl::IsNotFound(size.status())) return absl::DataLossError(StrCat(directory, ": ", file.name, " is missing"));
    if (!size.ok()) return size.status();
    if (*size != file.size) {
      return base::WithReason(
          absl::DataLossError(StrCat(directory, ": ", file.name, " has ", *size, " bytes, manifest says ", file.size)),
          "CHECKSUM_MISMATCH",
          {{"file", file.name},
           {"expected", file.sha256},
           {"expected_bytes", std::to_string(file.size)},
           {"found_bytes", std::to_string(*size)}});
    }
  }
  return manifest;
}

bool SaysDamaged(const absl::Status& status) {
  return absl::IsNotFound(status) || absl::IsDataLoss(status) || absl::IsInvalidArgument(status);
}

absl::StatusOr<Manifest> Verify(base::FileSystem& files, const std::string& directory, const Cancelled& cancelled) {
  NIBBLE_ASSIGN_OR_RETURN(Manifest manifest, CheckSizes(files, directory));
  for (const ManifestEntry& file : manifest.files) {
    NIBBLE_ASSIGN_OR_RETURN(const ManifestEntry found, HashFile(JoinPath(directory, file.name), cancelled));
    if (found.sha256 != file.sha256) {
      return base::WithReason(
          absl::DataLossError(StrCat(directory, ": ", file.name, " does not match its SHA-256 in the manifest")),
          "CHECKSUM_MISMATCH", {{"file", file.name}, {"expected", file.sha256}, {"found", found.sha256}});
    }
  }
  return manifest;
}

absl::StatusOr<PendingDirectory> PendingDirectory::Create(base::FileSystem& files, std::string target) {
  std::string temporary = base::TemporaryName(target);
  return Create(files, std::move(target), std::move(temporary));
}

absl::StatusOr<PendingDirectory> PendingDirectory::Create(base::FileSystem& files, std::string target,
                                                          std::string temporary) {
  if (files.Exists(target)) return absl::AlreadyExistsError(StrCat(target, " exists"));
  NIBBLE_RETURN_IF_ERROR(files.CreateDirectories(temporary));
  return PendingDirectory(files, std::move(temporary), std::move(target));
}

PendingDirectory::PendingDirectory(base::FileSystem& files, std::string path, std::string target)
    : files_(&files), path_(std::move(path)), target_(std::move(target)) {}

PendingDirectory::PendingDirectory(PendingDirectory&& other) noexcept
    : files_(other.files_), path_(std::exchange(other.path_, "")), target_(std::move(other.target_)) {}

PendingDirectory::~PendingDirectory() {
  // Best effort: start-up removes a temporary that remains.
  if (!path_.empty()) (void)files_->RemoveAll(path_);
}

absl::StatusOr<Manifest> PendingDirectory::Commit(const Cancelled& cancelled, const base::WrittenDigests& written) {
  std::vector<std::string> names, folders;
  NIBBLE_RETURN_IF_ERROR(Walk(path_, names, folders));
  base::Json list = base::Json::array();
  for (const std::string& name : names) {
    if (name == kManifestFile) return absl::InvalidArgumentError(StrCat(path_, " already has a manifest.json"));
    const std::string path = JoinPath(path_, name);
    NIBBLE_ASSIGN_OR_RETURN(auto file, files_->OpenForAppend(path));
    NIBBLE_RETURN_IF_ERROR(file->Sync());
    NIBBLE_RETURN_IF_ERROR(file->Close());
    NIBBLE_ASSIGN_OR_RETURN(const ManifestEntry entry, HashFile(path, cancelled, written));
    base::Json item = base::Json::object();
    item["name"] = name;
    item["size"] = entry.size;
    item["sha256"] = entry.sha256;
    list.push_back(std::move(item));
  }
  for (const std::string& folder : folders) NIBBLE_RETURN_IF_ERROR(files_->SyncDirectory(folder));
  base::Json json = base::Json::object();
  json["version"] = 1;
  json["files"] = std::move(list);
  {
    NIBBLE_ASSIGN_OR_RETURN(auto file, files_->Create(JoinPath(path_, kManifestFile)));
    NIBBLE_RETURN_IF_ERROR(file->Append(base::Dump(json, 1)));
    NIBBLE_RETURN_IF_ERROR(file->Sync());
    NIBBLE_RETURN_IF_ERROR(file->Close());
  }
  NIBBLE_RETURN_IF_ERROR(files_->SyncDirectory(path_));
  NIBBLE_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(*files_, path_));
  if (files_->Exists(target_)) return absl::AlreadyExistsError(StrCat(target_, " exists"));
  NIBBLE_RETURN_IF_ERROR(files_->Rename(path_, target_));
  if (absl::Status synced = files_->SyncDirectory(Parent(target_)); !synced.ok()) {
    path_ = target_;  // The rename may not be durable, so the destructor removes the target.
    return synced;
  }
  path_.clear();
  return manifest;
}

absl::Status MovePublished(base::FileSystem& files, const std::string& from, const std::string& to) {
  // rename(2) would replace an empty directory.
  if (files.Exists(to)) return absl::AlreadyExistsError(StrCat(to, " exists"));
  NIBBLE_RETURN_IF_ERROR(files.Rename(from, to));
  return SyncMoved(files, from, to);
}

absl::Status SyncMoved(base::FileSystem& files, const std::string& from, const std::string& to) {
  NIBBLE_RETURN_IF_ERROR(files.SyncDirectory(Parent(to)));
  if (Parent(from) != Parent(to)) NIBBLE_RETURN_IF_ERROR(files.SyncDirectory(Parent(from)));
  return absl::OkStatus();
}

absl::StatusOr<std::string> HidePublished(base::FileSystem& files, const std::string& directory) {
  const std::string temporary = base::TemporaryName(directory);
  NIBBLE_RETURN_IF_ERROR(files.Rename(directory, temporary));
  NIBBLE_RETURN_IF_ERROR(files.SyncDirectory(Parent(directory)));
  return temporary;
}

void RemoveHidden(base::FileSystem& files, const std::string& directory) {
  if (directory.empty()) return;
  if (const absl::Status removed = files.RemoveAll(directory); !removed.ok()) {
    base::LogWarning("cannot remove deleted files until the next start",
                     {{"path", directory}, {"why", std::string(removed.message())}});
  }
}

absl::Status RemovePublished(base::FileSystem& files, const std::string& directory) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string hidden, HidePublished(files, directory));
  return files.RemoveAll(hidden);
}

absl::Status RemoveTemporaries(base::FileSystem& files, const std::string& directory) {
  if (!files.Exists(directory)) return absl::OkStatus();
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(directory));
  for (const std::string& name : names) {
    if (base::IsTemporaryName(name)) NIBBLE_RETURN_IF_ERROR(files.RemoveAll(JoinPath(directory, name)));
  }
  return absl::OkStatus();
}

}  // namespace nibble::store
