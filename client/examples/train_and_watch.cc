// Fine-tunes a model with QLoRA for ten steps and prints the job's events.
//   example_train_and_watch HOST:PORT BASE DATASET OUTPUT
#include <iostream>
#include <string>

#include "client/client.h"
#include "server/base/ids.h"

namespace {

namespace v1 = nibble::v1;

v1::CreateJobRequest MakeRequest(const std::string& base, const std::string& dataset, const std::string& output) {
  v1::CreateJobRequest request;
  // The library repeats a call that was lost. With this id the server creates only one job.
  request.set_request_id(nibble::base::NewId("example"));
  v1::JobSpec& spec = *request.mutable_spec();
  spec.set_base_model(base);
  spec.set_train_dataset(dataset);
  spec.mutable_qlora()->set_r(4);
  spec.mutable_qlora()->set_alpha(8);
  spec.mutable_data()->set_max_seq_len(64);
  spec.mutable_optim()->set_lr(5e-3);
  spec.mutable_run()->set_max_steps(10);
  spec.mutable_publish()->set_output_model(output);
  return request;
}

absl::Status Print(const v1::JobEvent& event) {
  if (event.has_state()) std::cout << v1::JobState_Name(event.state().to()) << '\n';
  if (event.has_step()) std::cout << "step " << event.step().step() << ", loss " << event.step().loss() << '\n';
  if (event.has_warning()) std::cout << "warning: " << event.warning().message() << '\n';
  if (event.has_model()) std::cout << "model " << event.model().model() << '\n';
  return absl::OkStatus();  // An error would end the watch, but not the job.
}

absl::Status Run(const std::string& server, const std::string& base, const std::string& dataset,
                 const std::string& output) {
  auto client = nibble::client::Client::Connect(server, {});
  const auto created = client.Call(&v1::FineTuneService::Stub::CreateJob, MakeRequest(base, dataset, output));
  if (!created.ok()) return created.status();
  // The job continues if this program ends. Another watch can begin after the sequence of the last event.
  const auto ended = client.WatchJob(created->name(), 0, &Print);
  if (!ended.ok()) return ended.status();
  return ended->state() == v1::JOB_STATE_SUCCEEDED ? absl::OkStatus() : nibble::client::FromProto(ended->error());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: example_train_and_watch HOST:PORT BASE DATASET OUTPUT\n";
    return 2;
  }
  const absl::Status status = Run(argv[1], argv[2], argv[3], argv[4]);
  if (!status.ok()) std::cerr << status << '\n';
  return status.ok() ? 0 : 1;
}
