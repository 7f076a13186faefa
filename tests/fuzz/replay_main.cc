// Passes every given file, and every file of the given folders, to a fuzz target, with two of the limits that run.sh
// gives libFuzzer: 5 s per input and 256 MiB per allocation. An exception fails too. Needs no libFuzzer, so gcc's
// builds replay the corpora as well.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz.h"

namespace {

constexpr unsigned kMaxSeconds = 5;
#if defined(NIBBLE_ASAN) || defined(NIBBLE_TSAN)
constexpr bool kSanitizer = true;
#else
constexpr bool kSanitizer = false;
#endif

char g_input[4096] = "(no input yet)";  // a plain array: signal handlers read it

// Callable from a signal handler.
void Say(const char* what) {
  const char* const input = g_input;
  for (const char* part : {"replay: ", input, ": ", what, "\n"}) {
    if (::write(STDERR_FILENO, part, std::strlen(part)) < 0) break;
  }
}

void OnSignal(int signal) {
  Say(signal == SIGALRM   ? "took longer than 5 s"
      : signal == SIGSEGV ? "invalid memory access"
      : signal == SIGFPE  ? "divided by zero"
                          : "aborted");
  ::_exit(1);
}

std::vector<std::string> Inputs(int argc, char** argv) {
  std::vector<std::string> paths;
  for (int i = 1; i < argc; ++i) {
    if (!std::filesystem::is_directory(argv[i])) {
      paths.emplace_back(argv[i]);
      continue;
    }
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i])) {
      if (entry.is_regular_file()) paths.push_back(entry.path().string());
    }
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

void Run(const std::vector<std::uint8_t>& bytes) {
  // A block of exactly the input's size, so that AddressSanitizer detects a read past its end.
  const auto copy = std::make_unique<std::uint8_t[]>(bytes.size());
  std::copy(bytes.begin(), bytes.end(), copy.get());
  ::alarm(kMaxSeconds);
  LLVMFuzzerTestOneInput(copy.get(), bytes.size());
  ::alarm(0);
}

}  // namespace

// AddressSanitizer has its own operator new and limit (set in CMakeLists.txt).
#if !defined(NIBBLE_ASAN)
constexpr std::size_t kMaxAllocation = std::size_t{256} << 20;
void* operator new(std::size_t size) {
  if (size > kMaxAllocation) {
    Say("allocated more than 256 MiB at once");
    ::_exit(1);
  }
  void* block = std::malloc(size == 0 ? 1 : size);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }
#endif

int main(int argc, char** argv) {
  const std::vector<std::string> paths = Inputs(argc, argv);
  if (paths.empty()) {
    std::fprintf(stderr, "usage: %s FILE|FOLDER ...: no input found\n", argv[0]);
    return 2;
  }
  for (const int signal : {SIGALRM, SIGABRT, SIGSEGV, SIGFPE}) {
    const bool theirs = signal == SIGSEGV || signal == SIGFPE;  // sanitizers report more about these
    if (!kSanitizer || !theirs) ::signal(signal, OnSignal);
  }
  for (const std::string& path : paths) {
    std::strncpy(g_input, path.c_str(), sizeof g_input - 1);
    std::ifstream file(path, std::ios::binary);
    const std::vector<std::uint8_t> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (!file.is_open() || file.bad()) {
      Say("cannot be read");
      return 1;
    }
    try {
      Run(bytes);
    } catch (const std::exception& error) {
      Say("threw:");
      Say(error.what());
      return 1;
    }
  }
  std::printf("replayed %zu inputs\n", paths.size());
  return 0;
}
