// With a file of assembly, Go takes functions without a body: those of go:linkname.
