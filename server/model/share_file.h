// Large files that lie in two artifacts take room once.
#pragma once
#include <string>

namespace nibble::model {

// Makes `to`, which must not exist, a file of the bytes of `from`: a reflink, or a hard link where the file system has none. Neither
// file may be written to afterwards. False where the file system can do neither (another disk): the caller copies.
bool ShareFile(const std::string& from, const std::string& to);

}  // namespace nibble::model
