// Puts a checkpoint, which no trainer wrote, into a job.
#pragma once
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>

#include "server/base/files.h"
#include "server/base/strings.h"
#include "server/store/checkpoints.h"
#include "server/store/layout.h"
#include "tests/server/model/files.h"

namespace nibble::testing_support {

// Puts a checkpoint of `step` into attempt 1 of a job of the server whose state is DIRECTORY/state. The checkpoint is
// complete, but besides its manifest holds only state.json and what `write` puts into its directory. Returns its
// directory; "" if no checkpoint can be begun. The checkpoint is written outside the state and then moved, because the
// server removes unfinished files in the attempts of a job without a trainer.
inline std::string PlantCheckpoint(const std::string& directory, const std::string& job, int step,
                                   const std::function<void(const std::string& path)>& write = {}) {
  auto& files = base::RealFileSystem();
  const std::string attempt = base::JoinPath(directory, "attempt");
  EXPECT_TRUE(files.CreateDirectories(base::JoinPath(attempt, store::kCheckpointsDirectory)).ok());
  auto pending = store::BeginCheckpoint(files, attempt, step);
  EXPECT_TRUE(pending.ok()) << pending.status();
  if (!pending.ok()) return "";
  model::WriteBytes(pending->path() + "/state.json", "{}");
  if (write) write(pending->path());
  const std::string written = pending->target();
  EXPECT_TRUE(pending->Commit().ok());
  const std::string checkpoints =
      base::StrCat(directory, "/state/jobs/", job, "/attempts/1/", store::kCheckpointsDirectory);
  EXPECT_TRUE(files.CreateDirectories(checkpoints).ok());
  std::string target = base::JoinPath(checkpoints, std::filesystem::path(written).filename().string());
  EXPECT_TRUE(files.Rename(written, target).ok());
  return target;
}

}  // namespace nibble::testing_support
