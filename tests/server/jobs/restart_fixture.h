// Fixture for tests of jobs whose server restarts or cannot publish a model.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "server/base/error.h"
#include "server/base/hooked_files.h"
#include "server/base/ids.h"
#include "tests/server/jobs/controller_fixture.h"
#include "tests/server/jobs/faulty_database.h"
#include "tests/server/store/faulty_files.h"

namespace nibble::jobs {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using enum JobState;

class RestartTest : public ControllerFixture {
 protected:
  // Returns a job whose trainer has succeeded but whose output could not be moved to the models. SUCCEEDED is not
  // reported yet; the next try would work.
  std::string EndsAndFailsToPublish(const std::string& output) {
    const std::string id = Submit(Spec(output));
    controller_->Tick();
    Ready(Trainer(id));
    controller_->Tick();
    Finish(Trainer(id));
    machine_.Exit(Trainer(id), 0);
    const std::string models = state_->paths.models();
    EXPECT_EQ(::rename(models.c_str(), (models + "-away").c_str()), 0);
    controller_->Tick();
    EXPECT_EQ(State(id), kRunning) << "the trainer has succeeded, but the model does not exist";
    EXPECT_FALSE(controller_->Events(id, 0, 100)->ended);
    EXPECT_EQ(::rename((models + "-away").c_str(), models.c_str()), 0);
    return id;
  }
};

}  // namespace nibble::jobs
