#include "server/rpc/server_answers.h"

#include <string>

#include "absl/strings/ascii.h"
#include "server/base/process_memory.h"
#include "server/rpc/methods.h"
#include "server/rpc/model_proto.h"
#include "server/rpc/time.h"

namespace nibble::rpc {

namespace {

constexpr char kExportFormatPrefix[] = "EXPORT_FORMAT_";

void SetLimits(const ServerFacts::Limits& limits, v1::ServerLimits& out) {
  out.set_max_message_bytes(limits.max_message_bytes);
  out.set_max_chunk_bytes(limits.max_chunk_bytes);
  out.set_max_dataset_bytes(limits.max_dataset_bytes);
  out.set_max_model_bytes(limits.max_model_bytes);
  out.set_max_waiting_requests(static_cast<std::int32_t>(limits.max_waiting_requests));
  out.set_max_running_requests(static_cast<std::int32_t>(limits.max_running_requests));
  out.set_max_queued_jobs(static_cast<std::int32_t>(limits.max_queued_jobs));
  out.set_max_jobs_per_principal(limits.max_jobs_per_principal);
  out.set_max_dataset_line_bytes(limits.max_dataset_line_bytes);
  out.set_max_tokenizer_bytes(limits.max_tokenizer_bytes);
  *out.mutable_max_stream_age() = ToProto(limits.max_stream_age);
  out.set_max_upload_bytes_per_principal(limits.max_upload_bytes_per_principal);
  *out.mutable_upload_kept() = ToProto(limits.upload_kept);
  if (limits.generate_deadline != absl::InfiniteDuration())
    *out.mutable_generate_deadline() = ToProto(limits.generate_deadline);
  if (limits.operation_deadline != absl::InfiniteDuration())
    *out.mutable_operation_deadline() = ToProto(limits.operation_deadline);
}

}  // namespace

v1::ServerInfo ToProto(const ServerFacts& facts) {
  v1::ServerInfo info;
  info.set_version(facts.version);
  info.set_commit(facts.commit);
  info.set_code_digest(facts.code_digest);
  info.set_cuda_version(facts.cuda_version);
  *info.mutable_start_time() = ToProto(facts.started);
  auto* device = info.add_devices();
  *device->mutable_device() = CpuDevice();
  device->set_name(facts.cpu_name);
  device->set_isa(kernels::Name(facts.isa));
  device->set_memory_total_bytes(facts.memory_total_bytes);
  device->set_memory_free_bytes(facts.memory_free_bytes);
  info.set_threads(facts.threads);
  for (const std::string& method : facts.job_methods) info.add_job_methods(method);
  info.set_runner(facts.runner);
  info.set_kubernetes_namespace(facts.kubernetes_namespace);
  info.set_kubernetes_queue(facts.kubernetes_queue);
  for (const char* format : {"f32", "bf16", "nf4", "int8", "ternary", "lora"}) info.add_serve_formats(format);
  for (const char* format : {"int8", "ternary", "nf4", "bf16"}) info.add_convert_formats(format);
  for (const v1::ExportFormat format : kExportFormats) {
    info.add_export_formats(
        absl::AsciiStrToLower(v1::ExportFormat_Name(format).substr(sizeof kExportFormatPrefix - 1)));
  }
  for (const char* name : kUnimplemented) info.add_unimplemented(name);
  SetLimits(facts.limits, *info.mutable_limits());
  return info;
}

v1::ServerLoad LoadNow(const serve::ModelManager& manager, jobs::Database& database, bool ready, bool draining) {
  v1::ServerLoad out;
  *out.mutable_time() = ToProto(absl::Now());
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
  *out.mutable_residents() = ToProto(manager);
  if (const auto counts = database.Counts(); counts.ok()) {
    for (const auto& [method, state, count] : *counts) {
      const auto number = static_cast<std::int32_t>(count);
      if (state == jobs::JobState::kPlanning || state == jobs::JobState::kQueued)
        out.set_jobs_queued(out.jobs_queued() + number);
      if (jobs::HasTrainer(state)) out.set_jobs_running(out.jobs_running() + number);
    }
  }
  out.set_rss_bytes(static_cast<std::int64_t>(base::ResidentBytes()));
  out.set_ready(ready);
  out.set_draining(draining);
  return out;
}

}  // namespace nibble::rpc
