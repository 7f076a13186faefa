// The endpoints /v1/fine_tuning/jobs. The stubs must outlive the calls; errors of the request are the answer.
#pragma once
#include <memory>
#include <string>

#include "server/base/json.h"
#include "server/openai/inner_calls.h"

namespace nibble::openai {

void CreateFineTuningJob(std::shared_ptr<Incoming> incoming, const base::Json& body, const Stubs& stubs);
void GetFineTuningJob(std::shared_ptr<Incoming> incoming, const std::string& job, const Stubs& stubs);
void CancelFineTuningJob(std::shared_ptr<Incoming> incoming, const std::string& job, const Stubs& stubs);
void PauseFineTuningJob(std::shared_ptr<Incoming> incoming, const std::string& job, const Stubs& stubs);
void ResumeFineTuningJob(std::shared_ptr<Incoming> incoming, const std::string& job, const Stubs& stubs);

// Pages of the lists begin with the newest.
void ListFineTuningJobs(std::shared_ptr<Incoming> incoming, const Stubs& stubs);
void ListFineTuningEvents(std::shared_ptr<Incoming> incoming, const std::string& job, const Stubs& stubs);
void ListFineTuningCheckpoints(std::shared_ptr<Incoming> incoming, const std::string& job, const Stubs& stubs);

}  // namespace nibble::openai
