// Package tests contains tests that involve several packages and real servers. They follow messages
// from the transaction of a service to the transaction of a consumer, also while servers and
// processes fail.
//
// It is a module of its own, so that the library does not depend on the modules that
// only these tests need.
package tests
