// Compares the output of commands with --json to the transcript in golden/json.txt: keys, numbers, zeros, nulls, one
// object per line. Further tests check the requests and the warnings of commands.
#include "server/base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "server/base/files.h"
#include "server/base/sha256.h"
#include "tests/client/fake_server.h"

namespace nibble::client {
namespace {

constexpr char kModel[] = R"(
  name: "smol-q" format: MODEL_FORMAT_INT8 digest: "ab12" bytes: 9007199254740993 parameters: 134515008
  architecture { family: "llama" hidden_size: 576 num_layers: 30 num_heads: 9 num_kv_heads: 3 head_size: 64
                 intermediate_size: 1536 vocab_size: 49152 max_positions: 8192 tied_embeddings: true }
  base_model: "" origin: MODEL_ORIGIN_CONVERT source: "smol" determinism: DETERMINISM_EXACT tokenizer_digest: "cd"
  has_chat_template: true trained_format: DATASET_FORMAT_CHAT act_outliers: 8 head_format: MODEL_FORMAT_INT8
  activations: MODEL_FORMAT_INT8
  record_rows: 32 recorded_by: "convert"
  create_time { seconds: 1700000000 } etag: "e1")";

constexpr char kJob[] = R"(
  name: "job-1" uid: "u-1" state: JOB_STATE_RUNNING attempt: 2 retries: 1 output_model: "tuned" etag: "e2"
  state_reason { reason: "TRAINER_LOST" message: "retried" }
  spec { base_model: "smol" qlora { r: 8 alpha: 16 } train_dataset: "d" device { kind: DEVICE_KIND_CPU }
         optim { lr: 0.0002 schedule: LR_SCHEDULE_COSINE } run { max_steps: 20 max_duration { seconds: 90 } } }
  progress { step: 7 max_steps: 20 epoch: 0.25 tokens: 9007199254740993 trainable_tokens: 7000 percent: 35
             eta { seconds: 12 nanos: 500000000 } tokens_per_s: 512.5 peak_memory_bytes: 734003200
             update_time { seconds: 1700000001 } }
  latest_step { step: 7 loss: 2.5 lr: 0.0002 grad_norm: 0.75 tokens: 1024 trainable_tokens: 1000 tokens_per_s: 500
                step_ms: 2048 kernel_launches: 321 peak_memory_bytes: 734003200
                launches { kernel: "torch:aten::mm" phase: "train" count: 300 }
                launches { kernel: "matmul_nf4" phase: "train" count: 21 } }
  latest_eval { eval_loss: 3.25 tokens: 4096 subject: EVAL_SUBJECT_TRAINED duration_ms: 12 best: true }
  create_time { seconds: 1700000000 } start_time { seconds: 1700000000 nanos: 500000000 })";

constexpr char kGenerated[] = R"(
  start { request_id: "r-1" model_version: "smol" weights_digest: "ab12" prompt_tokens: 5 queue_ms: 0.5 }
  outputs { text: "Paris \342\230\203" token_ids: 8 token_ids: 0
            logprobs { token_id: 8 logprob: -0.25 token: "Paris" top { token_id: 8 logprob: -0.25 token: "Paris" } }
            logprobs { token_id: 0 logprob: -1.5 token: "\342\230" top { token_id: 3 logprob: -0.5 } }
            finish { reason: FINISH_REASON_EOS } }
  usage { prompt_tokens: 5 completion_tokens: 2 ttft_ms: 20.5 prefill_ms: 18.25 kernel_launches: 1234567890123 })";

void FillModels(FakeServer& server) {
  server.import_model.Answers(Done<v1::Model>(kModel));
  server.get_model.answer = [model = Proto<v1::Model>(kModel)](const v1::GetModelRequest& request, v1::Model* out) {
    if (request.name() != "smol-q") return Error(grpc::StatusCode::NOT_FOUND, "there is no such model", "MODEL");
    *out = model;
    return grpc::Status::OK;
  };
  server.list_models.answer = [](const v1::ListModelsRequest& request, v1::ListModelsResponse* page) {
    // Two pages.
    page->add_models()->set_name(request.page_token().empty() ? "a" : "b");
    if (request.page_token().empty()) page->set_next_page_token("2");
    return grpc::Status::OK;
  };
  server.delete_model.Answers({});
  const std::string residents = std::string("model {") + kModel + R"(}
    residents { models { name: "smol-q" format: MODEL_FORMAT_INT8 digest: "ab12" device { kind: DEVICE_KIND_CPU }
                         bytes: 135 }
                weights_bytes: 135 })";
  server.load_model.Answers(Done<v1::LoadModelResponse>(residents));
  server.unload_model.Answers(Proto<v1::UnloadModelResponse>(residents));
  server.verify_model.Answers(Done<v1::VerifyModelResponse>(
      "equal: true rows: 32 recorded_by: 'convert' device: DEVICE_KIND_CPU digest: 'ab12'"));
  server.convert_model.Answers(Done<v1::ConvertModelResponse>(std::string("model {") + kModel + R"(}
    report { source_format: MODEL_FORMAT_LORA target_format: MODEL_FORMAT_INT8 source_digest: "s" target_digest: "ab12"
             layers { layer: "model.layers.0.mlp.down_proj" rms_error: 0.0001 relative_error: 0.005 max_abs_error: 0 }
             eval_loss_before: 2.5 eval_loss_after: 2.5078125 eval_tokens: 4096 })"));
  server.export_model.Answers(
      Done<v1::ExportModelResponse>("artifact_id: 'a-1' files { path: 'adapter_config.json' size_bytes: 2 }"));
  server.download_artifact.answer = [](const auto&,
                                       const std::function<bool(const v1::DownloadArtifactResponse&)>& write) {
    write(Proto<v1::DownloadArtifactResponse>("file { path: 'adapter_config.json' size_bytes: 2 }"));
    write(Proto<v1::DownloadArtifactResponse>("chunk: '{}'"));
    write(Proto<v1::DownloadArtifactResponse>("finish { sha256: '" + base::Sha256Hex("{}") + "' }"));
    return grpc::Status::OK;
  };
}

void FillDatasets(FakeServer& server) {
  server.preview_dataset.Answers(Proto<v1::PreviewDatasetResponse>(R"(
    rows { row: 1 text: "ab" token_ids: 1 token_ids: 2 trained: false trained: true token_texts: "a" token_texts: "b" }
    total_rows: 12 tokens: 2 trainable_tokens: 1
    warnings { reason: "PROMPT_BOUNDARY_MERGED" message: "1 of 2 rows" row_ids: 1 })"));
  server.list_datasets.Answers(
      Proto<v1::ListDatasetsResponse>("datasets { name: 'd' format: DATASET_FORMAT_PROMPT_COMPLETION rows: 3 bytes: 99 "
                                      "sha256: 'ef' create_time { seconds: 1700000000 } }"));
  server.delete_dataset.Answers({});
  server.list_uploads.Answers(
      Proto<v1::ListUploadsResponse>("uploads { upload_id: 'u-1' kind: UPLOAD_KIND_MODEL state: "
                                     "UPLOAD_STATE_INTERRUPTED name: 'smol' committed_bytes: 99 num_files: 2 "
                                     "principal: 'ann' }"));
  server.cancel_upload.Answers({});
}

void FillJobs(FakeServer& server) {
  server.create_job.Answers(Proto<v1::Job>(kJob));
  server.get_job.Answers(Proto<v1::Job>("name: 'job-1' state: JOB_STATE_SUCCEEDED"));
  server.list_jobs.Answers(
      Proto<v1::ListJobsResponse>("jobs { name: 'job-1' state: JOB_STATE_QUEUED progress { queue_position: 1 } }"));
  server.cancel_job.Answers(
      Proto<v1::Job>("name: 'job-1' state: JOB_STATE_CANCELLING error { code: 1 message: 'cancelled by the user' }"));
  server.delete_job.Answers({});
  server.list_checkpoints.Answers(Proto<v1::ListCheckpointsResponse>(R"(checkpoints { name: "job-1/5" step: 5
    metrics { key: "loss" value: 2.5 } resumable: true digest: "aa" bytes: 42 create_time { seconds: 1700000000 }
    attempt: 1 })"));
  server.watch_job.answer = [](const auto&, const std::function<bool(const v1::JobEvent&)>& write) {
    const std::string time = " time { seconds: 1700000000 nanos: 250000000 } severity: SEVERITY_INFO ";
    const std::vector<std::string> events = {
        "snapshot { job { state: JOB_STATE_RUNNING } last_sequence: 1 }",
        "state { to: JOB_STATE_QUEUED }",
        "attempt: 1 state { from: JOB_STATE_PREPARING to: JOB_STATE_RUNNING }",
        "attempt: 1 eval { eval_loss: 4.5 tokens: 100 subject: EVAL_SUBJECT_TRAINED best: true }",
        ("attempt: 1 step { step: 1 loss: 4.25 lr: 0.0001 grad_norm: 1.5 tokens: 512 launches { kernel: 'rms_norm' "
         "phase: 'train' count: 61 } }"),
        "attempt: 1 checkpoint { checkpoint { name: 'job-1/1' step: 1 resumable: true } }",
        ("attempt: 2 state { from: JOB_STATE_PREPARING to: JOB_STATE_RUNNING resumed_step: 1 reason { reason: "
         "'RESUMED' "
         "message: 'from job-1/1' } }"),
        "attempt: 2 warning { reason: 'ROWS_TRUNCATED' message: '2 rows' row_ids: 4 row_ids: 9 }",
        "attempt: 2 log { text: 'a \"quoted\" line' }",
        "attempt: 2 model { model: 'tuned' format: MODEL_FORMAT_LORA digest: 'ab12' bytes: 1000 }",
        "attempt: 2 state { from: JOB_STATE_RUNNING to: JOB_STATE_SUCCEEDED }"};
    for (std::size_t i = 0; i < events.size(); ++i) {
      write(Proto<v1::JobEvent>("sequence: " + std::to_string(i) + time + events[i]));
    }
    return grpc::Status::OK;
  };
}

void FillLogs(FakeServer& server) {
  // The second chunk with data begins within a character; the last byte of the log is the beginning of one.
  server.watch_job_logs.Answers(
      {Proto<v1::JobLogChunk>("attempt: 1"), Proto<v1::JobLogChunk>(R"(attempt: 1 data: "one\ntwo \303")"),
       Proto<v1::JobLogChunk>(R"(attempt: 1 offset: 9 data: "\244\n\377")"), Proto<v1::JobLogChunk>("attempt: 2"),
       Proto<v1::JobLogChunk>(R"(attempt: 2 data: "next\342")")});
}

void FillInference(FakeServer& server) {
  server.generate.Answers(Proto<v1::GenerateResponse>(kGenerated));
  server.chat.Answers(Proto<v1::GenerateResponse>(kGenerated));
  server.generate_stream.Answers(
      {Proto<v1::GenerateReply>(
           "start { request_id: 'r-1' model_version: 'smol' weights_digest: 'ab12' prompt_tokens: 5 queue_ms: 0.5 }"),
       Proto<v1::GenerateReply>(R"(delta { token_ids: 8
    logprobs { token_id: 8 logprob: -0.25 token: "Paris" top { token_id: 8 logprob: -0.25 token: "Paris" } } })"),
       Proto<v1::GenerateReply>(R"(delta { text: "Paris \342\230\203" token_ids: 0
    logprobs { token_id: 0 logprob: -1.5 token: "\342\230" top { token_id: 3 logprob: -0.5 } } })"),
       Proto<v1::GenerateReply>("finish { reason: FINISH_REASON_EOS }"),
       Proto<v1::GenerateReply>(R"(usage { prompt_tokens: 5 completion_tokens: 2 ttft_ms: 20.5 prefill_ms: 18.25
    kernel_launches: 1234567890123 })")});
  server.score.Answers(
      {Proto<v1::ScoreReply>(R"(tokens { tokens { token_id: 5 token: "a" } })"), Proto<v1::ScoreReply>(R"(tokens {
    first_position: 1
    tokens { token_id: 0 logprob: -0.5 token: "\377" top { token_id: 9 logprob: -0.25 token: "b" } } })"),
       Proto<v1::ScoreReply>(R"(finish { mean_loss: 0.5 perplexity: 1.6484375 usage { prompt_tokens: 2 }
    weights_digest: "ab12" })")});
  server.tokenize.Answers(Proto<v1::TokenizeResponse>("token_ids: 5 token_ids: 0 tokens: 'a' tokens: '\\304\\240b'"));
}

void FillServer(FakeServer& server) {
  server.server_info.Answers(Proto<v1::ServerInfo>(R"(version: "0.1.0" start_time { seconds: 1700000000 }
    devices { device { kind: DEVICE_KIND_CPU } name: "cpu" isa: "avx512" memory_total_bytes: 8589934592 }
    threads: 2 runner: "kubernetes" kubernetes_namespace: "ml" job_methods: "qlora" serve_formats: "int8"
    limits { max_message_bytes: 4194304 })"));
  server.server_load.Answers(Proto<v1::ServerLoad>("time { seconds: 1700000000 } rss_bytes: 123456789012 ready: true"));
}

void Fill(FakeServer& server) {
  FillModels(server);
  FillDatasets(server);
  FillJobs(server);
  FillLogs(server);
  FillInference(server);
  FillServer(server);
}

TEST(JsonTest, CommandsPrintTheDocumentedKeys) {
  FakeServer server;
  Fill(server);
  const std::string gguf = WriteFile("m.gguf", "weights");
  const std::string text = WriteFile("t.jsonl", "{\"text\": \"a\"}\n");
  const std::string out = TemporaryFolder() + "/out";
  const std::vector<std::vector<std::string>> commands = {
      {"models", "import", gguf, "--name", "new", "--dtype", "f32"},
      {"models", "list"},
      {"models", "get", "smol-q"},
      {"models", "delete", "smol-q"},
      {"models", "load", "smol-q"},
      {"models", "unload", "smol-q"},
      {"models", "verify", "smol-q"},
      {"models", "convert", "tuned", "--to", "int8", "--name", "smol-q", "--head", "bf16", "--act-outliers", "4"},
      {"models", "export", "tuned", "--format", "peft", "--out", out},
      {"datasets", "upload", text, "--name", "d", "--format", "text"},
      {"datasets", "preview", "d", "--model", "smol", "-n", "1"},
      {"datasets", "list"},
      {"datasets", "delete", "d"},
      {"uploads", "list"},
      {"uploads", "cancel", "u-1"},
      {"jobs", "create", "--method", "qlora", "--base", "smol", "--dataset", "d"},
      {"jobs", "create", "--method", "qlora", "--base", "smol", "--dataset", "d", "--watch"},
      {"jobs", "list"},
      {"jobs", "get", "job-1"},
      {"jobs", "watch", "job-1"},
      {"jobs", "logs", "job-1", "--follow"},
      {"jobs", "cancel", "job-1"},
      {"jobs", "checkpoints", "job-1"},
      {"jobs", "delete", "job-1"},
      {"generate", "smol", "--prompt", "p"},
      {"generate", "smol", "--prompt-file", text, "--logprobs", "1"},
      {"chat", "smol", "--message", "m"},
      {"score", "smol", "--text", "t"},
      {"score", "smol", "--file", text},
      {"tokenize", "smol", "--text", "t"},
      {"server", "info"},
      {"server", "load"}};
  std::string transcript;
  for (auto command : commands) {
    std::string shown = "$ nibble --json";
    for (const std::string& word : command) {
      shown += " " + (word == gguf ? "m.gguf" : word == text ? "t.jsonl" : word == out ? "OUT" : word);
    }
    command.insert(command.begin(), "--json");
    const Result result = RunNibble(server, command);
    EXPECT_EQ(result.exit, 0) << shown << "\n" << result.err;
    std::istringstream lines(result.out);
    for (std::string line; std::getline(lines, line);) {
      const auto json = base::ParseJson(line);
      ASSERT_TRUE(json.ok()) << line;
      EXPECT_TRUE(json->is_object()) << line;
    }
    if (const auto at = result.out.find(out); at != std::string::npos) {
      transcript += shown + "\n" + std::string(result.out).replace(at, out.size(), "OUT");
    } else {
      transcript += shown + "\n" + result.out;
    }
  }
  const auto golden = base::RealFileSystem().Read(NIBBLE_SOURCE_DIR "/tests/client/golden/json.txt", 1 << 20);
  if (golden.ok() && *golden == transcript) return;
  const std::string path = std::filesystem::temp_directory_path() / "nibble_json_transcript.txt";
  std::ofstream(path) << transcript;
  FAIL() << "the transcript differs from golden/json.txt; the new one is in " << path;
}

// The tests OptionsOf... check the requests that the commands send.
TEST(JsonTest, OptionsOfModelCommandsArriveInTheRequests) {
  FakeServer server;
  Fill(server);
  RunNibble(server, {"--json", "models", "import", WriteFile("m.gguf", "weights"), "--name", "n", "--dtype", "f32"});
  EXPECT_EQ(server.uploads.at(0).name, "m.gguf");
  EXPECT_EQ(server.import_model.asked.at(0).upload_id(), "upload-1");
  EXPECT_EQ(server.import_model.asked[0].dtype(), v1::MODEL_FORMAT_F32);
  EXPECT_EQ(server.import_model.asked[0].request_id().size(), 36u);
  const std::string models_path = WriteFile("m.gguf", "weights");
  RunNibble(server, {"models", "import", models_path, "--name", "n"});
  EXPECT_FALSE(server.import_model.asked.at(1).has_dtype());
  EXPECT_FALSE(server.import_model.asked[1].has_base_model());
  EXPECT_EQ(server.import_model.asked[1].source_name(), models_path);

  RunNibble(server, {"models", "convert", "a", "--to", "nf4", "--name", "b"});
  EXPECT_EQ(server.convert_model.asked.at(0).target(), v1::MODEL_FORMAT_NF4);
  EXPECT_FALSE(server.convert_model.asked[0].has_head());
  EXPECT_FALSE(server.convert_model.asked[0].has_adapter_init());
  RunNibble(server, {"models",
                     "convert",
                     "a",
                     "--to",
                     "f32",
                     "--name",
                     "b",
                     "--adapter-init",
                     "loftq",
                     "--adapter-name",
                     "c",
                     "--rank",
                     "4",
                     "--alpha",
                     "8.5",
                     "--rslora",
                     "--target",
                     "q_proj,v_proj",
                     "--rank-pattern",
                     "layers.0=2",
                     "--alpha-pattern",
                     "v_proj=1.5",
                     "--iterations",
                     "3"});
  const v1::ConvertModelRequest& adapted = server.convert_model.asked.at(1);
  EXPECT_EQ(adapted.target(), v1::MODEL_FORMAT_F32);
  const v1::AdapterInit wanted = Proto<v1::AdapterInit>(
      "method: ADAPTER_INIT_METHOD_LOFTQ name: 'c' r: 4 alpha: 8.5 use_rslora: true target_modules: 'q_proj' "
      "target_modules: 'v_proj' rank_pattern { key: 'layers.0' value: 2 } alpha_pattern { key: 'v_proj' value: 1.5 } "
      "iterations: 3");
  EXPECT_EQ(adapted.adapter_init().DebugString(), wanted.DebugString());
  RunNibble(server, {"models", "export", "a", "--format", "hf", "--out", TemporaryFolder()});
  EXPECT_EQ(server.export_model.asked.at(0).format(), v1::EXPORT_FORMAT_HF);
  EXPECT_FALSE(server.export_model.asked[0].has_max_shard_bytes());
  RunNibble(server, {"models", "export", "a", "--format", "compressed-tensors", "--max-shard-bytes", "6000000000",
                     "--out", TemporaryFolder()});
  EXPECT_EQ(server.export_model.asked.at(1).format(), v1::EXPORT_FORMAT_COMPRESSED_TENSORS);
  EXPECT_EQ(server.export_model.asked[1].max_shard_bytes(), 6'000'000'000);
  RunNibble(server, {"models", "load", "a", "--device", "cuda:1"});
  EXPECT_EQ(server.load_model.asked.at(0).device().ordinal(), 1);
}

TEST(JsonTest, OptionsOfInferenceCommandsArriveInTheRequests) {
  FakeServer server;
  Fill(server);
  RunNibble(server, {"--json", "generate", "m", "--prompt", "p", "--max-tokens", "7", "--temperature", "0.5", "--seed",
                     "0", "--logprobs", "1", "--ignore-eos"});
  const v1::GenerateRequest& generate = server.generate_stream.asked.at(0).request();
  EXPECT_EQ(generate.text(), "p");
  EXPECT_EQ(generate.stopping().max_tokens(), 7);
  EXPECT_TRUE(generate.stopping().ignore_eos());
  EXPECT_EQ(generate.sampling().temperature(), 0.5);
  EXPECT_TRUE(generate.sampling().has_seed());
  RunNibble(server, {"--json", "generate", "m", "--prompt", ""});
  EXPECT_TRUE(server.generate.asked.at(0).has_text());
  EXPECT_FALSE(server.generate.asked[0].has_sampling());
  // Text that looks like an option is sent as text.
  RunNibble(server, {"--json", "generate", "m", "--prompt", "--json -n [a,b] \"%\""});
  EXPECT_EQ(server.generate.asked.at(1).text(), "--json -n [a,b] \"%\"");
  RunNibble(server, {"--json", "chat", "m", "--message", "hi"});
  EXPECT_EQ(server.chat.asked.at(0).request().stopping().max_tokens(), 256);
  server.chat.asked.clear();
  RunNibble(server, {"chat", "m", "--message", "hi", "--json", "--max-tokens", "3"});  // global options may follow
  EXPECT_EQ(server.chat.asked.at(0).request().chat().messages(0).role(), "user");
  EXPECT_EQ(server.chat.asked[0].request().stopping().max_tokens(), 3);
  RunNibble(server, {"--json", "datasets", "preview", "d", "--model", "m", "-n", "5"});
  EXPECT_EQ(server.preview_dataset.asked.at(0).n(), 5);
  RunNibble(server, {"--json", "score", "m", "--file", WriteFile("f", "a\r\nb" + std::string(1, '\0') + "\n")});
  EXPECT_EQ(server.score.asked.at(0).request().top_n(), 1);
  EXPECT_EQ(server.score.asked[0].request().text(), "a\r\nb" + std::string(1, '\0') + "\n");  // every byte of the file
}

TEST(JsonTest, ImportNamesTheSourceOfTheModel) {
  FakeServer server;
  Fill(server);
  const std::string cache = TemporaryFolder() + "/models--HuggingFaceTB--SmolLM2-135M/snapshots/0a1b";
  std::filesystem::create_directories(cache);
  for (const char* name : {"config.json", "tokenizer.json", "model.safetensors"}) {
    std::ofstream(cache + "/" + name) << "x";
  }
  EXPECT_EQ(RunNibble(server, {"models", "import", cache + "/", "--name", "n"}).exit, 0);
  EXPECT_EQ(server.import_model.asked.at(0).source_name(), "HuggingFaceTB/SmolLM2-135M");
  EXPECT_EQ(RunNibble(server, {"models", "import", cache, "--name", "n", "--source-name", "org/mine"}).exit, 0);
  EXPECT_EQ(server.import_model.asked.at(1).source_name(), "org/mine");
  const std::string folder = TemporaryFolder();
  std::filesystem::copy(cache, folder);
  EXPECT_EQ(RunNibble(server, {"models", "import", folder + "/.", "--name", "n"}).exit, 0);
  EXPECT_EQ(server.import_model.asked.at(2).source_name(), folder);
}

TEST(JsonTest, ImportOfAGgufFileRecommendsASourceName) {
  FakeServer server;
  Fill(server);
  const std::string gguf = WriteFile("m.gguf", "weights");
  EXPECT_THAT(RunNibble(server, {"models", "import", gguf, "--name", "n"}).err, testing::HasSubstr("--source-name"));
  const Result named = RunNibble(server, {"models", "import", gguf, "--name", "n", "--source-name", "org/mine"});
  EXPECT_THAT(named.err, testing::Not(testing::HasSubstr("--source-name")));
}

TEST(JsonTest, PeftExportWarnsIfPeftCannotLoadTheNamedBase) {
  FakeServer server;
  Fill(server);
  server.get_model.Answers(Proto<v1::Model>("name: 'tuned' base_model: 'smol-q'"));
  const auto exported = [&](const std::string& base) {
    const std::string config = R"({"base_model_name_or_path": ")" + base + R"("})";
    server.download_artifact.answer = [&](const auto&,
                                          const std::function<bool(const v1::DownloadArtifactResponse&)>& write) {
      v1::DownloadArtifactResponse part;
      part.mutable_file()->set_path("adapter_config.json");
      part.mutable_file()->set_size_bytes(static_cast<std::int64_t>(config.size()));
      write(part);
      part.set_chunk(config);
      write(part);
      part.mutable_finish()->set_sha256(base::Sha256Hex(config));
      write(part);
      return grpc::Status::OK;
    };
    const Result result =
        RunNibble(server, {"models", "export", "tuned", "--format", "peft", "--out", TemporaryFolder()});
    EXPECT_EQ(result.exit, 0) << result.err;
    return result.err;
  };
  EXPECT_THAT(exported("models/smol.Q4_1.gguf"), testing::HasSubstr("--source-name REPOSITORY"));
  EXPECT_THAT(exported("smol-q"), testing::HasSubstr("only this server knows"));
  EXPECT_THAT(exported("org/smol"), testing::Not(testing::HasSubstr("warning")));
}

TEST(JsonTest, AdapterIsSentWithItsBase) {
  FakeServer server;
  Fill(server);
  const std::string folder = TemporaryFolder();
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors", "README.md"})
    std::ofstream(folder + "/" + name) << "x";
  EXPECT_EQ(RunNibble(server, {"models", "import", folder, "--name", "n", "--base", "smol-q"}).exit, 0);
  EXPECT_EQ(server.import_model.asked.at(0).base_model(), "smol-q");
  EXPECT_FALSE(server.import_model.asked[0].has_dtype());
  EXPECT_FALSE(server.import_model.asked[0].has_source_name());
  ASSERT_EQ(server.uploads.at(0).files.size(), 2u);
  EXPECT_EQ(server.uploads[0].files[0].path(), "adapter_config.json");
  EXPECT_EQ(server.uploads[0].files[1].path(), "adapter_model.safetensors");
  // Invalid combinations fail before anything is sent.
  const std::string gguf = WriteFile("m.gguf", "weights");
  const std::pair<std::vector<std::string>, const char*> refused[] = {
      {{"models", "import", folder, "--name", "n"}, "base: is not set"},
      {{"models", "import", gguf, "--name", "n", "--base", "smol-q"}, "base: is for adapters"},
      {{"models", "import", folder, "--name", "n", "--base", "smol-q", "--dtype", "f32"}, "dtype: must not be set"},
      {{"models", "import", folder, "--name", "n", "--base", "nobody"}, "there is no such model"}};
  for (const auto& [command, names] : refused) {
    const Result result = RunNibble(server, command);
    EXPECT_NE(result.exit, 0) << names;
    EXPECT_THAT(result.err, testing::HasSubstr(names));
  }
  EXPECT_EQ(server.uploads.size(), 1u);
}

}  // namespace
}  // namespace nibble::client
