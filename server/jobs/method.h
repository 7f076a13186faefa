// A training method as a job spec sees it: its name, and the defaults and checks of its own fields. The server's plan
// of a method (plan/method_plan.h) and the trainer's recipe (trainer/recipe.h) have the same name (docs/adr/0014).
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "server/jobs/job_spec.h"

namespace nibble::jobs {

class SpecChecker;

// Stateless: any thread may call any function.
class Method {
 public:
  virtual ~Method() = default;

  virtual const char* name() const = 0;
  // Fills in unset fields of the method. Called at the end of jobs::Resolve.
  virtual void Resolve(JobSpec& /*spec*/) const {}
  // Unimplemented if a field has a value that is planned but not implemented.
  virtual absl::Status CheckImplemented(const JobSpec& /*spec*/) const { return absl::OkStatus(); }
  // Adds everything that is wrong with the method's fields beyond the choices and bounds in job_spec_fields.h.
  virtual void Check(const JobSpec& /*spec*/, SpecChecker& /*check*/) const {}
  // Adds the violations that depend on the number of optimizer steps.
  virtual void CheckSteps(const JobSpec& /*spec*/, std::int64_t /*steps*/, SpecChecker& /*check*/) const {}
  // Whether weights that were trained with another value of this field of the method can be the initial weights
  // (JobSpec::warm_start_from): they have the same tensors, and the same meaning.
  virtual bool MayDifferInStart(std::string_view /*field*/) const { return false; }
};

// All methods: the built-in ones, then those of RegisterMethod. Thread-safe, here and below.
std::vector<const Method*> Methods();
// Null if there is no such method.
const Method* FindMethod(std::string_view name);
// "qlora, bitnet_qat, full, int8_mixed, int8_qt or lora", for messages.
std::string MethodChoices();

// Adds a method, which must have a new name and live until the process ends. Call it before the first job is read.
// plan::RegisterMethod calls it.
void RegisterMethod(const Method& method);

// The built-in methods.
const Method& QLora();
const Method& BitNetQat();
const Method& Full();
const Method& Int8Mixed();
const Method& Int8Qt();
const Method& Lora();

}  // namespace nibble::jobs
