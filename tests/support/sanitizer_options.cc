// Default options of the sanitizers, linked into every test of the presets clang, asan and tsan. Environment variables
// override them. A suppression names a library that is not built here, with the reason; never our own code.
extern "C" {

const char* __asan_default_options() {
  // Allocations that are too large fail with bad_alloc or null, as they do without a sanitizer. No
  // detect_stack_use_after_return: gcc 12 aligns its stack frames to 32 bytes, and the 64-byte vectors in them fault
  // (gcc bug 110027).
  return "detect_leaks=1:allocator_may_return_null=1:detect_stack_use_after_return=0:strict_string_checks=1:check_"
         "initialization_order=1";
}

const char* __ubsan_default_options() { return "print_stacktrace=1"; }

// c-ares 1.18, with which gRPC resolves "localhost", leaks the 10 bytes of that name.
const char* __lsan_default_suppressions() { return "leak:libcares.so\n"; }

// Debian's gRPC, abseil and OpenSSL are not instrumented: their memory accesses are ignored (tsan_grpc.cc reports their
// locks).
const char* __tsan_default_options() {
  return "halt_on_error=1:second_deadlock_stack=1:allocator_may_return_null=1:ignore_noninstrumented_modules=1";
}

// Suppresses races inside gRPC's headers, which are compiled here and hand over an operation's own members by atomics
// inside libgrpc. The first rule matches files, and only the innermost frame: our callbacks under gRPC's frames, and
// our accesses to objects of gRPC's types, are still checked. The second rule matches the destructors of gRPC's
// calls, whose innermost frame is in std::function. A call counts its callbacks by an atomic that libgrpc++ also
// decrements, after a cancel, so the last of them seems unordered. Our OnDone runs before the destructor and is
// checked.
const char* __tsan_default_suppressions() { return "race_top:/grpcpp/\nrace:ServerCallback*Impl::~\n"; }

}  // extern "C"
