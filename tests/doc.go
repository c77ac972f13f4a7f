// Package tests has the tests across packages, against real servers: the chain from
// a service's transaction to a consumer's, faults, conformance.
//
// It is a module of its own, so that the library does not depend on the modules that
// only these tests need.
package tests
