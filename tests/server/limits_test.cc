#include "server/limits.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "server/base/json.h"
#include "server/data/row.h"
#include "server/data/token_cache.h"
#include "server/data/token_writer.h"
#include "server/http/http_server.h"
#include "server/kube/api_client.h"
#include "server/model/model_config.h"
#include "server/model/safetensors.h"
#include "server/model/text_assets.h"
#include "server/plan/dataset_preview.h"
#include "server/registry/text_cache.h"
#include "server/registry/upload_table.h"
#include "server/rpc/call.h"
#include "server/rpc/inference_service.h"
#include "server/rpc/tokens.h"
#include "server/serve/model_loads.h"
#include "server/text/piece_encoder.h"
#include "tests/support/temp_directory.h"

namespace nibble {
namespace {

// Defaults that the documents name.
TEST(LimitsTest, DefaultsAreAsDocumented) {
  const Limits l;
  EXPECT_EQ(l.max_receive_bytes, 4 << 20);
  EXPECT_EQ(l.max_send_bytes, 16 << 20);
  EXPECT_EQ(l.max_concurrent_streams, 100);
  EXPECT_EQ(l.max_metadata_bytes, 8 << 10);
  EXPECT_EQ(l.max_connections, 512);
  EXPECT_EQ(l.rpc_memory_bytes, 256 << 20);
  EXPECT_EQ(l.max_rpc_threads, 64);
  EXPECT_EQ(l.handshake_timeout_s, 10);
  EXPECT_EQ(l.keepalive_time_s, 60);
  EXPECT_EQ(l.keepalive_timeout_s, 20);
  EXPECT_EQ(l.min_ping_interval_s, 10);
  EXPECT_EQ(l.max_ping_strikes, 2);
  EXPECT_EQ(l.max_connection_age_s, 1800);
  EXPECT_EQ(l.max_connection_age_grace_s, l.max_stream_age_s) << "as long as an upload may take (ADR 0007)";
  EXPECT_EQ(l.max_connection_idle_s, 900);
  EXPECT_EQ(l.default_deadline_s, 30);
  EXPECT_EQ(l.max_stream_age_s, 3600);
  EXPECT_EQ(l.max_stream_messages, 10'000);
  EXPECT_EQ(l.slow_reader_s, 30);
  EXPECT_EQ(l.min_read_rate, 1);
  EXPECT_EQ(l.max_prompt_bytes, 1 << 20);
  EXPECT_EQ(l.max_watches, 256);
  EXPECT_EQ(l.max_downloads, 16);
  EXPECT_EQ(l.max_watches_per_principal, 64);
  EXPECT_EQ(l.max_downloads_per_principal, 8);
  EXPECT_EQ(l.max_plans_per_principal, 8);
  EXPECT_EQ(l.max_operations_per_principal, 16);
  EXPECT_EQ(l.max_dataset_bytes, 1 << 30);
  EXPECT_EQ(l.generate_deadline_s, 0) << "no deadline";
  EXPECT_EQ(l.operation_deadline_s, 0) << "no deadline";
  EXPECT_EQ(l.max_queued_jobs, 1000);
  EXPECT_EQ(l.max_running_jobs, 1);
  EXPECT_EQ(l.max_jobs_per_principal, 10);
  EXPECT_EQ(l.job_ageing_s, 3600);
  EXPECT_EQ(l.max_upload_bytes_per_principal, 2 * l.max_model_bytes) << "one in progress, and one not yet imported";
  EXPECT_EQ(l.upload_kept_s, 3600);
  EXPECT_EQ(l.token_cache_bytes, std::int64_t{8} << 30);
  EXPECT_EQ(l.max_dataset_line_bytes, 1 << 20);
  EXPECT_EQ(static_cast<std::size_t>(l.max_dataset_line_bytes), data::kDefaultMaxLineBytes);
  EXPECT_EQ(l.max_tokenizer_bytes, 64 << 20);
  EXPECT_EQ(static_cast<std::uint64_t>(l.max_tokenizer_bytes), model::kMaxTokenizerBytes)
      << "no flag can raise it (ADR 0008)";
}

// ADR 0008 says why these are constants and not flags.
TEST(LimitsTest, ConstantsMatchTheTableOfAdr0008) {
  EXPECT_EQ(base::kMaxJsonDepth, 64);
  EXPECT_EQ(model::kMaxSafetensorsHeader, 100'000'000u);
  EXPECT_EQ(model::kMaxTensors, 100'000u);
  EXPECT_EQ(model::kMaxTensorRank, 8u);
  EXPECT_EQ(model::kMaxTensorName, 512u);
  EXPECT_EQ(model::kMaxConfigJsonBytes, 1u << 20);
  EXPECT_EQ(data::kMaxMessages, 1024u);
  EXPECT_EQ(data::kTokenizeBytes, 8u << 20);
  EXPECT_EQ(data::kLargeRowBytes, 256u << 10);
  EXPECT_EQ(text::kPieceBytes, 32u << 10);
  EXPECT_EQ(data::TokenCache::kMaxWriters, 2);
  EXPECT_EQ(registry::UploadTableOptions().max_uploads, 1000);
  EXPECT_EQ(rpc::kMaxDetokenizedIds, 1'048'576);
  EXPECT_EQ(kube::ApiClient::kMaxRequests, 8u);
  EXPECT_EQ(serve::ModelLoads::kMaxWaiting, 256u);
  EXPECT_EQ(rpc::InferenceService::kMaxLargeTextsOfPrincipal, 16);
  EXPECT_EQ(registry::TextCacheOptions().max_bytes, 32u << 20);
  EXPECT_EQ(registry::TextCacheOptions().max_entries, 64u);
  EXPECT_EQ(plan::PreviewBounds().max_looked_rows, 10'000);
  EXPECT_EQ(plan::PreviewBounds().max_looked_bytes, 16u << 20);
  std::atomic<bool> draining{false};
  telemetry::Metrics metrics({}, {});
  base::WorkerPool workers(1, 1);
  const rpc::CallEnvironment environment(metrics, workers, base::RealClock(), draining);
  EXPECT_EQ(environment.max_chunk_bytes, 1u << 20);
  EXPECT_EQ(environment.max_page_bytes, 2u << 20);
  const http::HttpLimits http;
  EXPECT_EQ(http.max_connections, 128u);
  EXPECT_EQ(http.max_header_bytes, 8u << 10);
  EXPECT_EQ(http.max_header_fields, 64u);
  EXPECT_EQ(http.max_target_bytes, 1024u);
  EXPECT_EQ(http.request, absl::Seconds(5));
  EXPECT_EQ(http.idle, absl::Seconds(60));
  EXPECT_EQ(http.render, absl::Seconds(30));
  EXPECT_EQ(http.write, absl::Seconds(10));
}

// Every field, by the name of its flag.
const std::map<std::string, double (*)(const Limits&)>& Fields() {
  static const std::map<std::string, double (*)(const Limits&)> fields = {
      {"max_receive_bytes", [](const Limits& l) { return static_cast<double>(l.max_receive_bytes); }},
      {"max_send_bytes", [](const Limits& l) { return static_cast<double>(l.max_send_bytes); }},
      {"max_concurrent_streams", [](const Limits& l) { return static_cast<double>(l.max_concurrent_streams); }},
      {"max_metadata_bytes", [](const Limits& l) { return static_cast<double>(l.max_metadata_bytes); }},
      {"max_connections", [](const Limits& l) { return static_cast<double>(l.max_connections); }},
      {"rpc_memory_bytes", [](const Limits& l) { return static_cast<double>(l.rpc_memory_bytes); }},
      {"max_rpc_threads", [](const Limits& l) { return static_cast<double>(l.max_rpc_threads); }},
      {"handshake_timeout_s", [](const Limits& l) { return static_cast<double>(l.handshake_timeout_s); }},
      {"keepalive_time_s", [](const Limits& l) { return static_cast<double>(l.keepalive_time_s); }},
      {"keepalive_timeout_s", [](const Limits& l) { return static_cast<double>(l.keepalive_timeout_s); }},
      {"min_ping_interval_s", [](const Limits& l) { return static_cast<double>(l.min_ping_interval_s); }},
      {"max_ping_strikes", [](const Limits& l) { return static_cast<double>(l.max_ping_strikes); }},
      {"max_connection_age_s", [](const Limits& l) { return static_cast<double>(l.max_connection_age_s); }},
      {"max_connection_age_grace_s", [](const Limits& l) { return static_cast<double>(l.max_connection_age_grace_s); }},
      {"max_connection_idle_s", [](const Limits& l) { return static_cast<double>(l.max_connection_idle_s); }},
      {"workers", [](const Limits& l) { return static_cast<double>(l.workers); }},
      {"default_deadline_s", [](const Limits& l) { return static_cast<double>(l.default_deadline_s); }},
      {"generate_deadline_s", [](const Limits& l) { return static_cast<double>(l.generate_deadline_s); }},
      {"operation_deadline_s", [](const Limits& l) { return static_cast<double>(l.operation_deadline_s); }},
      {"max_stream_age_s", [](const Limits& l) { return static_cast<double>(l.max_stream_age_s); }},
      {"max_stream_messages", [](const Limits& l) { return static_cast<double>(l.max_stream_messages); }},
      {"stream_buffer", [](const Limits& l) { return static_cast<double>(l.stream_buffer); }},
      {"slow_reader_s", [](const Limits& l) { return static_cast<double>(l.slow_reader_s); }},
      {"min_read_rate", [](const Limits& l) { return static_cast<double>(l.min_read_rate); }},
      {"max_prompt_bytes", [](const Limits& l) { return static_cast<double>(l.max_prompt_bytes); }},
      {"max_watches", [](const Limits& l) { return static_cast<double>(l.max_watches); }},
      {"max_downloads", [](const Limits& l) { return static_cast<double>(l.max_downloads); }},
      {"max_watches_per_principal", [](const Limits& l) { return static_cast<double>(l.max_watches_per_principal); }},
      {"max_downloads_per_principal",
       [](const Limits& l) { return static_cast<double>(l.max_downloads_per_principal); }},
      {"max_plans_per_principal", [](const Limits& l) { return static_cast<double>(l.max_plans_per_principal); }},
      {"max_operations_per_principal",
       [](const Limits& l) { return static_cast<double>(l.max_operations_per_principal); }},
      {"max_dataset_bytes", [](const Limits& l) { return static_cast<double>(l.max_dataset_bytes); }},
      {"max_dataset_line_bytes", [](const Limits& l) { return static_cast<double>(l.max_dataset_line_bytes); }},
      {"max_tokenizer_bytes", [](const Limits& l) { return static_cast<double>(l.max_tokenizer_bytes); }},
      {"max_upload_bytes_per_principal",
       [](const Limits& l) { return static_cast<double>(l.max_upload_bytes_per_principal); }},
      {"upload_kept_s", [](const Limits& l) { return static_cast<double>(l.upload_kept_s); }},
      {"max_model_bytes", [](const Limits& l) { return static_cast<double>(l.max_model_bytes); }},
      {"base_cache_bytes", [](const Limits& l) { return static_cast<double>(l.base_cache_bytes); }},
      {"token_cache_bytes", [](const Limits& l) { return static_cast<double>(l.token_cache_bytes); }},
      {"min_free_bytes", [](const Limits& l) { return static_cast<double>(l.min_free_bytes); }},
      {"max_queued_jobs", [](const Limits& l) { return static_cast<double>(l.max_queued_jobs); }},
      {"max_running_jobs", [](const Limits& l) { return static_cast<double>(l.max_running_jobs); }},
      {"max_jobs_per_principal", [](const Limits& l) { return static_cast<double>(l.max_jobs_per_principal); }},
      {"job_ageing_s", [](const Limits& l) { return l.job_ageing_s; }},
      {"train_memory_bytes", [](const Limits& l) { return static_cast<double>(l.train_memory_bytes); }},
      {"serve_memory_bytes", [](const Limits& l) { return static_cast<double>(l.serve_memory_bytes); }},
      {"max_retries", [](const Limits& l) { return static_cast<double>(l.max_retries); }},
      {"retry_backoff_scale", [](const Limits& l) { return static_cast<double>(l.retry_backoff_scale); }},
      {"no_progress_timeout_s", [](const Limits& l) { return static_cast<double>(l.no_progress_timeout_s); }},
      {"no_progress_grace_s", [](const Limits& l) { return static_cast<double>(l.no_progress_grace_s); }},
      {"cancel_grace_s", [](const Limits& l) { return static_cast<double>(l.cancel_grace_s); }},
      {"pause_grace_s", [](const Limits& l) { return static_cast<double>(l.pause_grace_s); }},
      {"final_job_ttl_s", [](const Limits& l) { return static_cast<double>(l.final_job_ttl_s); }},
      {"keep_step_events", [](const Limits& l) { return static_cast<double>(l.keep_step_events); }},
  };
  return fields;
}

TEST(LimitsTest, EveryFlagSetsOnlyTheFieldOfItsName) {
  CLI::App names;
  Limits unused;
  AddLimitFlags(names, unused);
  const auto options = names.get_options([](const CLI::Option* option) { return option->get_name() != "--help"; });
  EXPECT_EQ(options.size(), Fields().size());
  for (const CLI::Option* option : options) {
    const std::string flag = option->get_name(), name = flag.substr(2);
    ASSERT_TRUE(Fields().contains(name)) << name;
    EXPECT_FALSE(option->get_description().empty()) << name;
    Limits l;
    CLI::App cli;
    AddLimitFlags(cli, l);
    // Valid for the flag, and not its default.
    const int value = name == "workers" || name == "max_running_jobs" ? 64 : 130;
    cli.parse(std::vector<std::string>{flag + "=" + std::to_string(value)});
    for (const auto& [other, get] : Fields())
      EXPECT_EQ(get(l), other == name ? value : get(Limits())) << flag << " and " << other;
  }
}

TEST(LimitsTest, ValuesOutOfRangeAreRefused) {
  for (const char* wrong :
       {"--max_receive_bytes=0", "--workers=65", "--stream_buffer=127", "--handshake_timeout_s=-1",
        "--min_free_bytes=-2", "--base_cache_bytes=-2", "--max_running_jobs=0", "--retry_backoff_scale=-1",
        "--max_retries=x", "--max_dataset_line_bytes=0", "--upload_kept_s=-1", "--max_upload_bytes_per_principal=-1",
        "--max_tokenizer_bytes=67108865", "--generate_deadline_s=-1", "--final_job_ttl_s=-1", "--token_cache_bytes=-1",
        "--max_prompt_bytes=0", "--max_plans_per_principal=-1", "--keep_step_events=-1"}) {
    Limits l;
    CLI::App cli;
    AddLimitFlags(cli, l);
    EXPECT_THROW(cli.parse(std::vector<std::string>{wrong}), CLI::ValidationError) << wrong;
  }
}

class MemoryTest : public ::testing::Test {
 protected:
  void Put(const std::string& name, const std::string& text) {
    const std::string path = temp_ / name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path) << text;
  }
  std::int64_t Bytes() {
    const auto bytes = MachineMemoryBytes(base::RealFileSystem(), temp_.path());
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    return bytes.ok() ? *bytes : -1;
  }
  nibble::testing::TempDirectory temp_;
};

TEST_F(MemoryTest, SmallestBoundOfMachineAndCgroupCounts) {
  EXPECT_FALSE(MachineMemoryBytes(base::RealFileSystem(), temp_.path()).ok());
  Put("proc/meminfo", "MemTotal:       16000000 kB\nMemFree: 1 kB\n");
  EXPECT_EQ(Bytes(), 16'000'000LL * 1024);
  Put("sys/fs/cgroup/memory.max", "max\n");
  EXPECT_EQ(Bytes(), 16'000'000LL * 1024);
  Put("sys/fs/cgroup/memory.max", "1073741824\n");
  EXPECT_EQ(Bytes(), 1 << 30);
  Put("sys/fs/cgroup/memory.max", "max\n");
  Put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // v1: no limit
  EXPECT_EQ(Bytes(), 16'000'000LL * 1024);
  Put("sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n");
  EXPECT_EQ(Bytes(), 512 << 20);
}

// A service of systemd with MemoryMax is in a group of its own, which has this limit.
TEST_F(MemoryTest, LimitsOfTheProcessOwnGroupAndOfThoseAboveItCount) {
  Put("proc/meminfo", "MemTotal:       16000000 kB\n");
  Put("proc/self/cgroup", "0::/system.slice/nibbled.service\n");
  EXPECT_EQ(Bytes(), 16'000'000LL * 1024) << "a path that the mount does not have";
  Put("sys/fs/cgroup/system.slice/nibbled.service/memory.max", "2147483648\n");
  EXPECT_EQ(Bytes(), std::int64_t{2} << 30);
  Put("sys/fs/cgroup/system.slice/memory.max", "1073741824\n");
  EXPECT_EQ(Bytes(), 1 << 30);
  Put("sys/fs/cgroup/memory/batch/memory.limit_in_bytes", "536870912\n");
  EXPECT_EQ(Bytes(), 1 << 30) << "a group of others";
  Put("proc/self/cgroup", "5:cpu,memory:/batch\n4:memoryhog:/x\nmalformed\n0::/\n");
  EXPECT_EQ(Bytes(), 512 << 20);
  Put("proc/self/cgroup", "0::/../outside\n");
  Put("sys/fs/outside/memory.max", "1024\n");
  EXPECT_EQ(Bytes(), 16'000'000LL * 1024);
}

TEST(LimitsMemoryTest, FlagWinsOverTheMachine) {
  EXPECT_GT(MemoryBytes(0, 0, base::RealFileSystem()), 1 << 28);
  EXPECT_EQ(MemoryBytes(12345, 100, base::RealFileSystem()), 12345);
}

// T6 (docs/faults.md): trainers and models must not get all of the machine's memory, because nibbled itself needs some.
TEST(LimitsMemoryTest, MemoryOfNibbledItselfIsReserved) {
  const std::int64_t all = MemoryBytes(0, 0, base::RealFileSystem());
  EXPECT_EQ(MemoryBytes(0, 1 << 20, base::RealFileSystem()), all - (1 << 20));
  EXPECT_EQ(MemoryBytes(0, all, base::RealFileSystem()), all - all / 4) << "no more than a quarter of a small machine";
  Limits limits;
  const std::int64_t own = OwnMemoryBytes(limits);
  EXPECT_GT(own, limits.rpc_memory_bytes);
  EXPECT_LT(own, std::int64_t{5} << 28);  // 1.25 GiB
  limits.rpc_memory_bytes += 100;
  EXPECT_EQ(OwnMemoryBytes(limits), own + 100);
}

// C2 (docs/faults.md): a text that cannot be cut is encoded in one piece, which takes memory that no budget counts.
TEST(LimitsMemoryTest, MemoryThatEncodesTheLargestTextIsReserved) {
  Limits limits;
  const std::int64_t own = OwnMemoryBytes(limits);
  EXPECT_GT(own, 256 * limits.max_prompt_bytes);
  limits.max_prompt_bytes += 1000;
  EXPECT_EQ(OwnMemoryBytes(limits), own + 256'000);
}

}  // namespace
}  // namespace nibble
