// The only source of the targets that precompile headers: each target needs a source.
