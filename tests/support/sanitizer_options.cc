// What a sanitizer is told when a test program starts, linked into every test of the presets asan, ubsan and tsan. Variables
// of the environment win. A suppression names a library that is not built here, with the reason; never our own code.
extern "C" {

const char* __asan_default_options() {
  // What a caller would be refused with bad_alloc, or null, is refused here too.
  // No detect_stack_use_after_return: gcc 12 aligns its stack frames to 32 bytes, the 64-byte vectors in them fault (gcc bug 110027).
  return "detect_leaks=1:allocator_may_return_null=1:detect_stack_use_after_return=0:strict_string_checks=1:check_initialization_order=1";
}

const char* __ubsan_default_options() { return "print_stacktrace=1"; }

// c-ares 1.18, which gRPC resolves "localhost" with, loses the 10 bytes of that name.
const char* __lsan_default_suppressions() { return "leak:libcares.so\n"; }

// Debian's gRPC, abseil and OpenSSL are not instrumented: what they do to memory is theirs (tsan_grpc.cc tells of their locks).
const char* __tsan_default_options() {
  return "halt_on_error=1:second_deadlock_stack=1:allocator_may_return_null=1:ignore_noninstrumented_modules=1";
}

// gRPC's headers compiled here, where they hand an operation's own members over by atomics inside libgrpc. By file, and only the
// innermost frame counts: what a callback of ours does under gRPC's frames, or to a thing with gRPC's types, stays watched.
const char* __tsan_default_suppressions() { return "race_top:/grpcpp/\n"; }

}  // extern "C"
