// Lets two artifacts share the disk space of one large file.
#pragma once
#include <string>

namespace nibble::model {

// Creates `to`, which must not exist, with the bytes of `from`: as a reflink, or as a hard link if the file system has
// no reflinks. Neither file may be written to afterwards. Returns false if the file system can do neither (another
// disk); the caller then copies.
bool ShareFile(const std::string& from, const std::string& to);

}  // namespace nibble::model
