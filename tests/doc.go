// Package tests holds what is tested across packages, against real servers:
// the chain from a service's transaction to a consumer's, faults, conformance.
//
// It is a module of its own, so that the heavy dependencies of such tests stay
// out of the library's.
package tests
