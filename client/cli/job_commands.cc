#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/app.h"
#include "client/cli/command.h"
#include "client/cli/job_spec.h"
#include "client/cli/message_json.h"
#include "client/cli/render.h"
#include "google/protobuf/util/time_util.h"
#include "server/base/error.h"
#include "server/base/human_bytes.h"
#include "server/base/status_macros.h"
#include "server/base/strings.h"

namespace nibble::cli {
namespace {

using v1::FineTuneService;

constexpr char kPlanEnded[] = "the plan has ended";  // ends a watch

// Pause between GetJob calls for a job that cannot be watched.
constexpr absl::Duration kFirstPoll = absl::Milliseconds(200);
constexpr absl::Duration kLongestPoll = absl::Seconds(2);

// "less than a second", "about 17 s" (below two minutes), "about 5 min", "about 2.5 h" (above two hours).
std::string HumanDuration(const google::protobuf::Duration& duration) {
  const double seconds = static_cast<double>(google::protobuf::util::TimeUtil::DurationToMilliseconds(duration)) / 1e3;
  if (seconds < 1) return "less than a second";
  if (seconds < 119.5) return base::StrCat("about ", std::llround(seconds), " s");
  if (seconds <= 7200) return base::StrCat("about ", std::llround(seconds / 60), " min");
  return base::StrCat("about ", HumanNumber(std::round(seconds / 360) / 10, 6), " h");
}

std::string StepsText(const v1::Progress& progress) { return base::StrCat(progress.step(), "/", progress.max_steps()); }

void PrintJob(Session& session, const v1::Job& job) {
  if (session.json) return session.Print(JobJson(job));
  Table table({"id", job.name()});
  std::string state = Upper(job.state());
  if (!job.state_reason().message().empty()) state += base::StrCat(": ", job.state_reason().message());
  table.Add({"state", state});
  table.Add({"attempt", base::StrCat(job.attempt())});
  table.Add({"method", MethodName(job.spec())});
  table.Add({"base", job.spec().base_model()});
  if (job.spec().has_resume_from()) table.Add({"continues", job.spec().resume_from()});
  if (job.spec().has_warm_start_from()) table.Add({"weights from", job.spec().warm_start_from()});
  table.Add({"steps", StepsText(job.progress())});
  table.Add({"tokens/s", HumanNumber(job.progress().tokens_per_s(), 5)});
  table.Add({"peak memory", base::HumanBytes(job.progress().peak_memory_bytes())});
  if (job.has_latest_step()) table.Add({"loss", HumanNumber(job.latest_step().loss(), 6)});
  if (job.has_latest_eval()) {
    table.Add({"eval loss",
               base::StrCat(HumanNumber(job.latest_eval().eval_loss(), 6), " at step ", job.latest_eval().step())});
  }
  if (job.has_int8_eval()) table.Add({"eval loss, int8", HumanNumber(job.int8_eval().eval_loss(), 6)});
  if (job.has_ternary_eval()) table.Add({"eval loss, ternary", HumanNumber(job.ternary_eval().eval_loss(), 6)});
  if (job.has_best_checkpoint()) {
    const auto& metrics = job.best_checkpoint().metrics();
    const auto loss = metrics.find("eval_loss");
    table.Add(
        {"best checkpoint", base::StrCat(job.best_checkpoint().name(), loss == metrics.end() ? "" : ", eval loss ",
                                         loss == metrics.end() ? "" : HumanNumber(loss->second, 6))});
  }
  table.Add({"output", job.output_model()});
  const std::int64_t ahead = job.progress().queue_position();
  // A job that waits for a retry may be the next, but does not start at once; its state says so.
  if (job.state() == v1::JOB_STATE_QUEUED && (ahead > 0 || job.state_reason().message().empty())) {
    table.Add(
        {"queue", ahead == 0 ? "next to start" : base::StrCat(ahead, ahead == 1 ? " job" : " jobs", " before it")});
  }
  if (job.progress().has_eta() && !client::IsFinal(job.state())) {
    table.Add({"time left", HumanDuration(job.progress().eta())});
  }
  if (job.has_error() && job.state() != v1::JOB_STATE_CANCELLED) {  // a cancelled job's state message is the same
    const std::string reason = base::Reason(client::FromProto(job.error()));
    table.Add({"error", base::StrCat(job.error().message(), reason.empty() ? "" : base::StrCat(" (", reason, ")"))});
  }
  table.Print(session.out());
}

// Maps the final state of a job to the program's status. A job that failed before it started gives its own error, as a
// refused CreateJob would.
absl::Status Outcome(const v1::Job& job) {
  if (job.state() == v1::JOB_STATE_SUCCEEDED) return absl::OkStatus();
  if (job.state() == v1::JOB_STATE_CANCELLED)
    return absl::CancelledError(base::StrCat("job ", job.name(), " was cancelled"));
  const absl::Status error = client::FromProto(job.error());
  if (!job.has_start_time() && !error.ok()) {
    std::map<std::string, std::string> metadata = base::ReasonMetadata(error);
    metadata.erase("fault");  // A refused CreateJob has no such entry: its code shows whose fault it is.
    return base::WithReason(error, base::Reason(error), metadata);
  }
  // Internal, because the spec was accepted: the job's own code would look like a wrong request.
  return base::WithReason(
      absl::InternalError(base::StrCat("job ", job.name(), " ended ", Upper(job.state()), ": ",
                                       error.message().empty() ? job.state_reason().message() : job.error().message())),
      base::Reason(error), base::ReasonMetadata(error));
}

// The server refuses watches (STREAMS_FULL) but still answers GetJob.
bool CannotBeWatched(const absl::Status& status) { return absl::IsResourceExhausted(status); }

// Prints the job's events until its end. A watch that fails after an event says how to continue it.
absl::StatusOr<v1::Job> WatchToEnd(Session& session, const std::string& id, std::int64_t after) {
  NIBBLE_RETURN_IF_ERROR(CheckText("id", id));
  session.NoteJobContinues(id);
  std::int64_t last = after;
  absl::StatusOr<v1::Job> ended = session.client().WatchJob(id, after, [&](const v1::JobEvent& event) {
    last = event.sequence();
    if (session.json) {
      session.Print(EventJson(id, event));
    } else {
      session.out() << Printable(EventLine(event)) << '\n' << std::flush;
    }
    // The output is gone (a closed pipe): this ends the watch, not the job.
    return session.out() ? absl::OkStatus() : absl::CancelledError("the output was closed");
  });
  if (!ended.ok() && !CannotBeWatched(ended.status()) && last > after && session.out()) {
    session.terminal.err << Printable(base::StrCat("the watch of job ", id,
                                                   " failed; continue it with: nibble jobs watch ", id, " --after ",
                                                   last))
                         << '\n';
  }
  return ended;
}

absl::Status Watch(Session& session, const std::string& id, std::int64_t after) {
  NIBBLE_ASSIGN_OR_RETURN(const v1::Job job, WatchToEnd(session, id, after));
  return Outcome(job);
}

absl::StatusOr<v1::Job> GetJob(Session& session, const std::string& id) {
  v1::GetJobRequest request;
  request.set_name(id);
  return session.client().Call(&FineTuneService::Stub::GetJob, request);
}

// Polls the job until `done` returns true, for at most --timeout.
absl::StatusOr<v1::Job> Poll(Session& session, const std::string& id, bool (*done)(const v1::Job&)) {
  const absl::Time until =
      session.timeout_s > 0 ? absl::Now() + absl::Seconds(session.timeout_s) : absl::InfiniteFuture();
  for (absl::Duration wait = kFirstPoll;; wait = std::min(2 * wait, kLongestPoll)) {
    absl::StatusOr<v1::Job> job = GetJob(session, id);
    if (!job.ok() || done(*job)) return job;
    if (absl::Now() + wait > until) {
      return absl::DeadlineExceededError(base::StrCat("--timeout passed while waiting for job ", id));
    }
    absl::SleepFor(wait);
  }
}

bool IsPlanned(const v1::Job& job) { return job.state() != v1::JOB_STATE_PLANNING; }

bool IsOver(const v1::Job& job) { return client::IsFinal(job.state()); }

// Waits for the end of PLANNING.
absl::StatusOr<v1::Job> AwaitPlan(Session& session, const v1::Job& created) {
  if (IsPlanned(created)) return created;
  session.NoteJobContinues(created.name());
  const auto watched = session.client().WatchJob(created.name(), 0, [](const v1::JobEvent& event) {
    const bool planned = event.has_state() && event.state().to() != v1::JOB_STATE_PLANNING;
    return planned ? absl::CancelledError(kPlanEnded) : absl::OkStatus();
  });
  if (CannotBeWatched(watched.status())) return Poll(session, created.name(), &IsPlanned);
  if (!watched.ok() && watched.status().message() != kPlanEnded) return watched.status();
  return GetJob(session, created.name());
}

// The error of a job that ended before it started. OK for any other job.
absl::Status PlanOutcome(const v1::Job& job) {
  return job.has_start_time() || !client::IsFinal(job.state()) ? absl::OkStatus() : Outcome(job);
}

// For a command that fails after it created its job: prints the id of the job.
absl::Status NotFollowed(Session& session, const std::string& id, const absl::Status& status) {
  session.terminal.err << Printable(base::StrCat("job ", id, " was created; see it with: nibble jobs get ", id))
                       << '\n';
  return status;
}

absl::Status Follow(Session& session, const std::string& id) {
  absl::StatusOr<v1::Job> ended = WatchToEnd(session, id, 0);
  if (CannotBeWatched(ended.status())) {
    session.terminal.err << Printable(base::StrCat("the server refused the watch (",
                                                   base::ToStd(ended.status().message()), "): waiting for job ", id,
                                                   " without printing its events"))
                         << '\n'
                         << std::flush;
    ended = Poll(session, id, &IsOver);
  }
  if (!ended.ok()) return NotFollowed(session, id, ended.status());
  return Outcome(*ended);
}

absl::Status Create(Session& session, const JobFlags& flags, const std::string& request_id, bool watch, bool wait) {
  NIBBLE_ASSIGN_OR_RETURN(v1::JobSpec spec, BuildSpec(flags));
  NIBBLE_RETURN_IF_ERROR(CheckText("request_id", request_id));
  v1::CreateJobRequest request;
  *request.mutable_spec() = std::move(spec);
  request.set_request_id(request_id.empty() ? NewUuid() : request_id);
  const auto created = session.client().Call(&FineTuneService::Stub::CreateJob, request);
  if (absl::IsUnavailable(created.status()) || absl::IsDeadlineExceeded(created.status())) {
    session.terminal.err << "The server may have created the job. To retry without creating a second one, repeat the "
                         << "command with --request-id " << request.request_id() << "\n";
  }
  NIBBLE_ASSIGN_OR_RETURN(v1::Job job, created);
  if (watch && !session.json) session.out() << "job " << job.name() << '\n' << std::flush;
  if (watch || wait) {
    const absl::StatusOr<v1::Job> planned = AwaitPlan(session, job);
    if (!planned.ok()) return NotFollowed(session, job.name(), planned.status());
    job = *planned;
    NIBBLE_RETURN_IF_ERROR(PlanOutcome(job));
  }
  if (watch) return Follow(session, job.name());
  PrintJob(session, job);
  return absl::OkStatus();
}

struct ListOptions {
  std::vector<std::string> states;
  std::int64_t limit = 0;  // 0: all
};

absl::Status List(Session& session, const ListOptions& options) {
  base::Json list = base::Json::array();
  Table table({"ID", "STATE", "METHOD", "BASE", "STEPS", "TOKENS/S", "OUTPUT"});
  v1::ListJobsRequest request;
  for (const std::string& text : options.states) {
    v1::JobState state = v1::JOB_STATE_UNSPECIFIED;
    if (!v1::JobState_Parse(base::StrCat("JOB_STATE_", absl::AsciiStrToUpper(text)), &state)) {
      return base::FieldError(
          "--state", base::StrCat("got ", text, ", wanted a state that `jobs list` shows: QUEUED, RUNNING, ..."));
    }
    request.mutable_filter()->add_states(state);
  }
  if (options.limit > 0) request.set_page_size(static_cast<std::int32_t>(std::min<std::int64_t>(options.limit, 1000)));
  const auto enough = [&] { return options.limit > 0 && static_cast<std::int64_t>(list.size()) >= options.limit; };
  NIBBLE_RETURN_IF_ERROR(ForEachPage(session, &FineTuneService::Stub::ListJobs, request, [&](const auto& page) {
    for (const v1::Job& job : page.jobs()) {
      if (enough()) break;
      list.push_back(JobJson(job));
      table.Add({job.name(), Upper(job.state()), MethodName(job.spec()), job.spec().base_model(),
                 StepsText(job.progress()), HumanNumber(job.progress().tokens_per_s(), 4), job.output_model()});
    }
    return !enough();
  }));
  PrintList(session, "jobs", std::move(list), table);
  return absl::OkStatus();
}

absl::Status Checkpoints(Session& session, const std::string& id) {
  NIBBLE_RETURN_IF_ERROR(CheckText("id", id));
  base::Json list = base::Json::array();
  Table table({"NAME", "STEP", "SIZE", "RESUMABLE", "SERVABLE"});
  v1::ListCheckpointsRequest request;
  request.set_name(id);
  NIBBLE_RETURN_IF_ERROR(ForEachPage(session, &FineTuneService::Stub::ListCheckpoints, request, [&](const auto& page) {
    for (const v1::Checkpoint& checkpoint : page.checkpoints()) {
      list.push_back(CheckpointJson(checkpoint));
      table.Add({checkpoint.name(), base::StrCat(checkpoint.step()), base::HumanBytes(checkpoint.bytes()),
                 checkpoint.resumable() ? "yes" : "no", checkpoint.servable() ? "yes" : "no"});
    }
    return true;
  }));
  PrintList(session, "checkpoints", std::move(list), table);
  return absl::OkStatus();
}

absl::Status Delete(Session& session, const std::string& id) {
  return DeleteNamed(session, &FineTuneService::Stub::DeleteJob, "id", id);
}

// One call that takes the id of a job and returns the job.
template <typename Request, auto kMethod>
absl::Status One(Session& session, const std::string& id) {
  NIBBLE_RETURN_IF_ERROR(CheckText("id", id));
  Request request;
  request.set_name(id);
  NIBBLE_ASSIGN_OR_RETURN(const v1::Job job, session.client().Call(kMethod, request));
  PrintJob(session, job);
  return absl::OkStatus();
}

void AddCancel(CLI::App& group, Session& session) {
  CLI::App* sub = group.add_subcommand("cancel", "Stop a job");
  auto id = std::make_shared<std::string>();
  auto keep = std::make_shared<bool>(false);
  sub->add_option("ID", *id, "Job")->required();
  sub->add_flag("--keep-checkpoint", *keep, "Write a checkpoint first");
  sub->callback([&session, id, keep] {
    session.command = [&session, id, keep]() -> absl::Status {
      NIBBLE_RETURN_IF_ERROR(CheckText("id", *id));
      v1::CancelJobRequest request;
      request.set_name(*id);
      request.set_keep_checkpoint(*keep);
      NIBBLE_ASSIGN_OR_RETURN(const v1::Job job, session.client().Call(&FineTuneService::Stub::CancelJob, request));
      PrintJob(session, job);
      return absl::OkStatus();
    };
  });
}

void AddPublish(CLI::App& group, Session& session) {
  CLI::App* sub = group.add_subcommand("publish", "Publish a checkpoint as a model; the job continues");
  auto request = std::make_shared<v1::PublishCheckpointRequest>();
  sub->add_option("CHECKPOINT", *request->mutable_checkpoint(), "Checkpoint as `jobs checkpoints` prints it: ID/STEP")
      ->required();
  sub->add_option("--name", *request->mutable_name(), "Name of the new model")->required();
  const auto no_wait = AddNoWait(*sub);
  sub->callback([&session, request, no_wait] {
    session.command = [&session, request, no_wait]() -> absl::Status {
      NIBBLE_RETURN_IF_ERROR(CheckText("checkpoint", request->checkpoint()));
      NIBBLE_RETURN_IF_ERROR(CheckText("name", request->name()));
      NIBBLE_ASSIGN_OR_RETURN(const auto answer,
                              RunOperation<v1::PublishCheckpointResponse>(
                                  session, &v1::ModelService::Stub::PublishCheckpoint, *request, *no_wait));
      if (!answer.has_value()) return absl::OkStatus();
      if (session.json) {
        base::Json json = ModelJson(answer->model());
        json["residents"] = ResidentsJson(answer->residents());
        session.Print(json);
      } else {
        session.out() << "published " << answer->model().name() << '\n';
      }
      return absl::OkStatus();
    };
  });
}

void AddSpecFlags(CLI::App& sub, JobFlags& f) {
  sub.add_option("--method", f.method, "Training method")
      ->check(CLI::IsMember({"qlora", "bitnet_qat", "full", "int8_mixed", "int8_qt", "lora"}));
  for (const SpecOption& option : SpecOptions()) {
    sub.add_option_function<std::string>(
           option.name, [&f, path = option.path](const std::string& text) { f.fields[path] = text; }, option.help)
        ->check([&option](const std::string& text) { return CheckSpecOption(option, text); });
  }
  sub.get_option("--max-steps")->excludes(sub.get_option("--epochs"));
  sub.get_option("--eval-split")->excludes(sub.get_option("--eval-dataset"));
  sub.get_option("--warm-start-from")->excludes(sub.get_option("--resume-from"));
  sub.add_option(
      "--warmup", f.warmup,
      "Steps in which the learning rate rises, or their share of all steps with a decimal point or %: 100, 0.03, 3%");
  sub.add_option("--rank", f.rank, "Rank of the adapters");
  sub.add_option("--alpha", f.alpha, "Scale of the adapters");
  sub.add_option("--device", f.device, "auto, cpu or cuda:N");
  sub.add_option("--spec", f.spec_file, "File with a JobSpec in JSON; options override its fields, but not its method");
}

absl::Status Plan(Session& session, const JobFlags& flags, bool no_wait) {
  v1::PlanJobRequest request;
  NIBBLE_ASSIGN_OR_RETURN(*request.mutable_spec(), BuildSpec(flags));
  NIBBLE_ASSIGN_OR_RETURN(
      const auto ended, RunOperation<v1::PlanJobResponse>(session, &FineTuneService::Stub::PlanJob, request, no_wait));
  if (!ended.has_value()) return absl::OkStatus();
  const v1::PlanJobResponse& plan = *ended;
  if (session.json) {
    session.Print(PlanJson(plan));
    return absl::OkStatus();
  }
  Table table({"method", MethodName(plan.spec())});
  table.Add({"base", plan.spec().base_model()});
  table.Add({"steps", base::StrCat(plan.max_steps())});
  table.Add({"passes over the data", HumanNumber(plan.epochs(), 3)});
  table.Add({"tokens", base::StrCat(plan.tokens(), ", of which ", plan.trainable_tokens(), " are trained")});
  table.Add({"trained parameters", base::StrCat(plan.trainable_parameters())});
  for (const v1::MemoryItem& item : plan.memory())
    table.Add({base::StrCat("memory, ", item.pool()), base::HumanBytes(item.bytes())});
  table.Add({"memory, total", base::HumanBytes(plan.memory_total_bytes())});
  if (plan.memory_available_bytes() > 0) {
    table.Add({"memory for all trainers", base::HumanBytes(plan.memory_available_bytes())});
  }
  if (plan.disk_bytes() > 0) {
    table.Add({"disk", base::HumanBytes(plan.disk_bytes())});
    table.Add({"disk available", base::HumanBytes(plan.disk_available_bytes())});
  }
  table.Add({"time", plan.has_eta() ? HumanDuration(plan.eta()) : std::string("unknown: no comparable recent job")});
  table.Print(session.out());
  for (const v1::Warning& warning : plan.warnings()) {
    session.out() << "warning: " << Printable(warning.message()) << LinesOf(warning) << " ("
                  << Printable(warning.reason()) << ")\n";
  }
  return absl::OkStatus();
}

}  // namespace

void AddJobCommands(CLI::App& app, Session& session) {
  CLI::App& jobs = *app.add_subcommand("jobs", "Create and manage fine-tuning jobs");
  jobs.require_subcommand(1);
  {
    CLI::App* sub = jobs.add_subcommand("create", "Create a job; unset options use the server's defaults");
    struct Options {
      JobFlags flags;
      std::string request_id;
      bool watch = false, no_wait = false;
    };
    auto o = std::make_shared<Options>();
    JobFlags& f = o->flags;
    AddSpecFlags(*sub, f);
    sub->add_option("--request-id", o->request_id,
                    "UUID; a repeated call with the same UUID returns the same job (default: a new UUID)");
    CLI::Option* watch =
        sub->add_flag("--watch", o->watch, base::StrCat("Print the job's events until it ends; ", WaitsForTheServer()));
    sub->add_flag("--no-wait", o->no_wait,
                  "Return before the job's data is checked; an error in the data then fails the job")
        ->excludes(watch);
    sub->callback([&session, o] {
      session.command = [&session, o] { return Create(session, o->flags, o->request_id, o->watch, !o->no_wait); };
    });
  }
  {
    CLI::App* sub =
        jobs.add_subcommand("plan", "Estimate the memory, disk space and time of a job without creating it");
    auto flags = std::make_shared<JobFlags>();
    AddSpecFlags(*sub, *flags);
    const auto no_wait = AddNoWait(*sub);
    sub->callback([&session, flags, no_wait] {
      session.command = [&session, flags, no_wait] { return Plan(session, *flags, *no_wait); };
    });
  }
  {
    CLI::App* sub = jobs.add_subcommand("list", "List jobs, newest first");
    auto o = std::make_shared<ListOptions>();
    sub->add_option("--state", o->states, "Only jobs in this state; repeatable");
    sub->add_option("--limit", o->limit, "Maximum number of jobs (default: all)")
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40));
    sub->callback([&session, o] { session.command = [&session, o] { return List(session, *o); }; });
  }
  const auto add = [&](const char* command, const char* help, absl::Status (*run)(Session&, const std::string&)) {
    AddCommandOn(jobs, session, command, help, "ID", "Job", run);
  };
  add("get", "Show a job", &One<v1::GetJobRequest, &FineTuneService::Stub::GetJob>);
  {
    CLI::App* sub =
        jobs.add_subcommand("watch", base::StrCat("Print every event until the job ends; ", WaitsForTheServer()));
    auto id = std::make_shared<std::string>();
    auto after = std::make_shared<std::int64_t>(0);
    sub->add_option("ID", *id, "Job")->required();
    sub->add_option("--after", *after, "Print only events with a sequence above this (default: all events)")
        ->check(WholeNumber)
        ->check(CLI::NonNegativeNumber);
    sub->callback(
        [&session, id, after] { session.command = [&session, id, after] { return Watch(session, *id, *after); }; });
  }
  AddLogsCommand(jobs, session);
  AddCancel(jobs, session);
  add("pause", "Write a checkpoint of a job and stop it", &One<v1::PauseJobRequest, &FineTuneService::Stub::PauseJob>);
  add("resume", "Queue a paused job again", &One<v1::ResumeJobRequest, &FineTuneService::Stub::ResumeJob>);
  add("checkpoint", "Write a checkpoint of a running job after its current step",
      &One<v1::CheckpointJobRequest, &FineTuneService::Stub::CheckpointJob>);
  add("checkpoints", "List the checkpoints of a job", &Checkpoints);
  AddPublish(jobs, session);
  add("delete", "Delete a job that has ended", &Delete);
}

}  // namespace nibble::cli
