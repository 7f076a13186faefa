// Fine-tuning jobs, events and checkpoints in the form of OpenAI's API.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "nibble/v1/fine_tune_service.pb.h"
#include "server/base/json.h"

namespace nibble::openai {

// A status of OpenAI's set. A PAUSED job is "queued": it holds no trainer and has not ended, so programs that poll it
// keep waiting. nibble.state of JobJson has the state itself.
const char* JobStatus(v1::JobState state);

base::Json JobJson(const v1::Job& job);
base::Json EventJson(const std::string& job, const v1::JobEvent& event);
base::Json CheckpointJson(const v1::Checkpoint& checkpoint);

// The numbers in the ids of an event and of a checkpoint of that job. nullopt: another id.
std::optional<std::int64_t> SequenceOf(std::string_view event_id, std::string_view job);
std::optional<std::int64_t> StepOf(std::string_view checkpoint_id, std::string_view job);

}  // namespace nibble::openai
