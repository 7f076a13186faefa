// A process that has no file descriptor left still answers its probes (docs/faults.md, C3).
#include "server/http/spare_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "server/http/http_server.h"
#include "tests/server/http/raw_connection.h"

namespace nibble::http {
namespace {

// Limits the process to 256 file descriptors and takes those that are free, for as long as the object exists.
class AllFiles {
 public:
  AllFiles() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit few{256, before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &few);
    Take();
  }
  ~AllFiles() {
    for (const int file : files_) ::close(file);
    setrlimit(RLIMIT_NOFILE, &before_);
  }
  AllFiles(const AllFiles&) = delete;
  AllFiles& operator=(const AllFiles&) = delete;
  void Take() {
    for (int file = ::open("/dev/null", O_RDONLY); file >= 0; file = ::open("/dev/null", O_RDONLY))
      files_.push_back(file);
  }
  bool none_left() const {
    const int file = ::open("/dev/null", O_RDONLY);
    if (file >= 0) ::close(file);
    return file < 0;
  }

 private:
  rlimit before_{};
  std::vector<int> files_;
};

TEST(SpareFilesTest, ReleasesOneByOneAndRefills) {
  SpareFiles spare(2);
  AllFiles all;
  ASSERT_TRUE(all.none_left());
  EXPECT_TRUE(spare.Release());
  EXPECT_FALSE(all.none_left());
  spare.Refill();
  EXPECT_TRUE(all.none_left());
  EXPECT_TRUE(spare.Release());
  EXPECT_TRUE(spare.Release());
  EXPECT_FALSE(spare.Release());
  all.Take();
  spare.Refill();
  EXPECT_FALSE(spare.Release()) << "no descriptor was free to take back";
}

TEST(SpareFilesTest, AnswersProbesWithoutAFreeDescriptor) {
#ifdef NIBBLE_UBSAN
  // UBSan reads an object's type through a pipe, and reports an invalid type if it gets none. Any inline function of a
  // header may make it read a type.
  GTEST_SKIP() << "UBSan needs a free file descriptor";
#endif
  const auto ok = [] { return absl::OkStatus(); };
  auto server = HttpServer::Start("127.0.0.1:0",
                                  {.metrics = [] { return std::string(); }, .live = ok, .ready = ok, .started = ok});
  ASSERT_TRUE(server.ok()) << server.status();
  std::vector<std::unique_ptr<RawConnection>> clients;
  for (int i = 0; i < 8; ++i) clients.push_back(std::make_unique<RawConnection>());
  AllFiles all;
  // More clients than spare descriptors, and each stays open: the server closes an old connection for a new one.
  for (const auto& client : clients) {
    client->Connect((*server)->port());
    EXPECT_EQ(client->Get("/livez").status, 200);
    EXPECT_TRUE(all.none_left());
  }
  EXPECT_TRUE(clients.front()->AwaitClosed());
}

}  // namespace
}  // namespace nibble::http
