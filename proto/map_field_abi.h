// Included before all other headers in the preset tsan. protobuf's map fields have two additional members if
// ThreadSanitizer is on. libprotobuf.so was built without them, so the layouts would differ.
#pragma once
#include <memory>  // before the macro is undefined, so that the standard library keeps its ThreadSanitizer annotations

#pragma push_macro("__SANITIZE_THREAD__")
#undef __SANITIZE_THREAD__
#include <google/protobuf/map_field.h>
#pragma pop_macro("__SANITIZE_THREAD__")
