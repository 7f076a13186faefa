// The only source of the targets that precompile headers: a target needs one.
