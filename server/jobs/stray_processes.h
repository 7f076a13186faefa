// Processes that a trainer started and that have outlived it, out of its process group (setsid): docs/faults.md, R17.
#pragma once
#include <sys/types.h>

#include <set>
#include <string>

namespace nibble::jobs {

// SIGKILL to every other process that has `path` open: what a trainer starts inherits its attempt's lock.
void KillHolders(const std::string& path);

// Ends and reaps the children of this process that are not in `known`. Such a child was not started here: it came as an orphan,
// where this process is PID 1 or has made itself the subreaper (prctl PR_SET_CHILD_SUBREAPER, as nibbled does).
void EndStrayChildren(const std::set<pid_t>& known);

// Reaps those of them that have ended by themselves; does nothing where no orphans come to this process. Cheap.
void ReapStrayChildren(const std::set<pid_t>& known);

}  // namespace nibble::jobs
