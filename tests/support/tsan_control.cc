// The negative control of the preset tsan: a race must be reported under the options and suppressions that the tests run with.
#include <cstdio>
#include <thread>

int main() {
  int shared = 0;
  std::thread other([&shared] { ++shared; });
  ++shared;
  other.join();
  std::printf("%d: nothing was reported\n", shared);
  return 0;
}
