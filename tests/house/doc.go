// Package house tests rules that hold for all packages of the library: what their errors begin with and
// name, where they log, which ports they open, and which types they export.
package house
