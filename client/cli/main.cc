#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "client/cli/app.h"
#include "client/cli/interrupt.h"

namespace {

int OutColumns() {
  winsize size = {};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

}  // namespace

int main(int argc, char** argv) {
  // The program prints its own errors; gRPC would print lines of its log between them. If the user set the variable,
  // its value stays.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  std::ios::sync_with_stdio(false);
  static nibble::cli::InterruptNote interrupt;
  nibble::cli::PrintWhenInterrupted(interrupt);
  nibble::cli::Terminal terminal{std::cin,
                                 std::cout,
                                 std::cerr,
                                 isatty(STDIN_FILENO) != 0,
                                 isatty(STDOUT_FILENO) != 0,
                                 isatty(STDERR_FILENO) != 0,
                                 &interrupt,
                                 OutColumns()};
  return nibble::cli::Run(std::vector<std::string>(argv + 1, argv + argc), terminal, &nibble::client::Client::Connect);
}
