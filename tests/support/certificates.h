// Certificate authorities and certificates for tests, made with the openssl program.
#pragma once
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace nibble::testing {

inline std::string FileText(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {(std::istreambuf_iterator<char>(stream)), {}};
}

inline void RunOpenssl(const std::string& arguments) {
  ASSERT_EQ(std::system(("openssl " + arguments + " 2>/dev/null").c_str()), 0) << "openssl " << arguments;
}

// Makes an authority: `prefix`.crt and `prefix`.key.
inline void MakeAuthority(const std::string& prefix) {
  RunOpenssl(
      "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=tests -addext "
      "basicConstraints=critical,CA:TRUE -keyout " +
      prefix + ".key -out " + prefix + ".crt");
}

// Makes `prefix`.crt and `prefix`.key, signed by `authority`; `names`: "DNS:localhost,IP:127.0.0.1,URI:spiffe://...".
inline void MakeCertificate(const std::string& prefix, const std::string& authority, const std::string& names) {
  RunOpenssl("req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=leaf -keyout " + prefix +
             ".key -out " + prefix + ".csr");
  std::ofstream(prefix + ".ext") << "subjectAltName=" << names << "\n";
  RunOpenssl("x509 -req -in " + prefix + ".csr -CA " + authority + ".crt -CAkey " + authority +
             ".key -CAcreateserial -days 7 -extfile " + prefix + ".ext -out " + prefix + ".crt");
}

}  // namespace nibble::testing
