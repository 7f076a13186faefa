#include "client/cli/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <iostream>
#include <thread>
#include <utility>

namespace nibble::cli {

void InterruptNote::Set(std::string text) {
  base::MutexLock lock(mutex_);
  text_ = std::move(text);
}

std::string InterruptNote::Get() const {
  base::MutexLock lock(mutex_);
  return text_;
}

void PrintWhenInterrupted(const InterruptNote& note) {
  sigset_t taken;
  sigemptyset(&taken);
  for (const int number : {SIGINT, SIGTERM}) {
    struct sigaction now{};
    if (::sigaction(number, nullptr, &now) == 0 && now.sa_handler != SIG_IGN) sigaddset(&taken, number);
  }
  if (::pthread_sigmask(SIG_BLOCK, &taken, nullptr) != 0) return;
  // Detached: it waits until the program ends.
  std::thread([&note, taken] {
    int number = 0;
    if (sigwait(&taken, &number) != 0) return;
    if (const std::string text = note.Get(); !text.empty()) std::cerr << '\n' << text << '\n' << std::flush;
    ::signal(number, SIG_DFL);
    ::pthread_sigmask(SIG_UNBLOCK, &taken, nullptr);
    ::kill(::getpid(), number);
  }).detach();
}

}  // namespace nibble::cli
