// Processes that a trainer started and that outlived it outside its process group (setsid): docs/faults.md, R17.
#pragma once
#include <sys/types.h>

#include <set>
#include <string>

namespace nibble::jobs {

// Sends SIGKILL to every other process that has `path` open: a trainer's descendants inherit its attempt's lock.
void KillHolders(const std::string& path);

// Kills and reaps the children of this process that are not in `known`. Such a child was not started here: it is an
// orphan that the kernel gave to this process, which is PID 1 or a subreaper (prctl PR_SET_CHILD_SUBREAPER, as nibbled
// is).
void EndStrayChildren(const std::set<pid_t>& known);

// Reaps such children that have already ended. Does nothing if this process receives no orphans. Cheap.
void ReapStrayChildren(const std::set<pid_t>& known);

}  // namespace nibble::jobs
