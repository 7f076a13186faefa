#include "server/app_info.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "absl/strings/ascii.h"
#include "server/base/files.h"
#include "server/base/process_memory.h"
#include "server/build_info.h"
#include "server/jobs/method.h"
#include "server/limits.h"
#include "server/rpc/methods.h"
#include "server/rpc/model_proto.h"
#include "server/rpc/time.h"

namespace nibble {

namespace {

constexpr char kExportFormatPrefix[] = "EXPORT_FORMAT_";

std::string CpuName() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.compare(0, 10, "model name") == 0 && line.find(": ") != std::string::npos)
      return line.substr(line.find(": ") + 2);
  }
  return "CPU";
}

}  // namespace

v1::ServerInfo StaticInfo(kernels::Isa isa, int threads, absl::Time started) {
  v1::ServerInfo info;
  info.set_version(kVersion);
  info.set_commit(BuiltFrom().commit);
  info.set_code_digest(BuiltFrom().code_digest);
  info.set_cuda_version(BuiltFrom().cuda);
  *info.mutable_start_time() = rpc::ToProto(started);
  auto* device = info.add_devices();
  *device->mutable_device() = rpc::CpuDevice();
  device->set_name(CpuName());
  device->set_isa(kernels::Name(isa));
  const std::int64_t page = sysconf(_SC_PAGESIZE);
  // The memory that jobs and models are admitted against: in a container, the container's limit.
  const std::int64_t total = MachineMemoryBytes(base::RealFileSystem(), "/").value_or(sysconf(_SC_PHYS_PAGES) * page);
  device->set_memory_total_bytes(total);
  device->set_memory_free_bytes(std::min(total, sysconf(_SC_AVPHYS_PAGES) * page));
  info.set_threads(threads);
  for (const jobs::Method* method : jobs::Methods()) info.add_job_methods(method->name());
  for (const char* format : {"f32", "bf16", "nf4", "int8", "ternary", "lora"}) info.add_serve_formats(format);
  for (const char* format : {"int8", "ternary", "nf4"}) info.add_convert_formats(format);
  for (const v1::ExportFormat format : rpc::kExportFormats) {
    info.add_export_formats(
        absl::AsciiStrToLower(v1::ExportFormat_Name(format).substr(sizeof kExportFormatPrefix - 1)));
  }
  for (const char* name : rpc::kUnbuilt) info.add_unimplemented(name);
  return info;
}

v1::ServerLoad LoadOf(const serve::ModelManager& manager, jobs::Database& database) {
  v1::ServerLoad out;
  *out.mutable_time() = rpc::ToProto(absl::Now());
  for (const auto& resident : manager.residents()) {
    const serve::EngineLoad load = resident->engine->load();
    out.set_requests_running(out.requests_running() + static_cast<std::int32_t>(load.running));
    out.set_requests_waiting(out.requests_waiting() + static_cast<std::int32_t>(load.waiting));
    out.set_kv_blocks_used(out.kv_blocks_used() + load.used_pages);
    out.set_kv_blocks_total(out.kv_blocks_total() + load.total_pages);
  }
  const serve::EngineTotals& totals = manager.totals();
  out.set_requests_total(static_cast<std::int64_t>(totals.requests));
  out.set_prompt_tokens_total(static_cast<std::int64_t>(totals.prompt_tokens));
  out.set_generated_tokens_total(static_cast<std::int64_t>(totals.generated_tokens));
  *out.mutable_residents() = rpc::ToProto(manager);
  if (const auto counts = database.Counts(); counts.ok()) {
    for (const auto& [method, state, count] : *counts) {
      const auto number = static_cast<std::int32_t>(count);
      if (state == jobs::JobState::kPlanning || state == jobs::JobState::kQueued)
        out.set_jobs_queued(out.jobs_queued() + number);
      if (jobs::HasTrainer(state)) out.set_jobs_running(out.jobs_running() + number);
    }
  }
  out.set_rss_bytes(static_cast<std::int64_t>(base::ResidentBytes()));
  return out;
}

}  // namespace nibble
