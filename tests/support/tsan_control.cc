// The negative control of the preset tsan: a race must be reported under the tests' options and suppressions, even in a
// function whose name contains gRPC's types.
#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <thread>

namespace {

__attribute__((noinline)) void Write(grpc::Status*, int* shared) { ++*shared; }

}  // namespace

int main() {
  int shared = 0;
  grpc::Status status;
  std::thread other([&] { Write(&status, &shared); });
  Write(&status, &shared);
  other.join();
  std::printf("%d: nothing was reported\n", shared);
  return 0;
}
