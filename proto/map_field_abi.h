// Read before all else in the preset tsan. protobuf's map fields have two members more where the compiler says that
// ThreadSanitizer is on; libprotobuf.so was built without them, and would look for the others at the wrong place.
#pragma once
#include <memory>  // the standard library's own checks stay on

#pragma push_macro("__SANITIZE_THREAD__")
#undef __SANITIZE_THREAD__
#include <google/protobuf/map_field.h>
#pragma pop_macro("__SANITIZE_THREAD__")
