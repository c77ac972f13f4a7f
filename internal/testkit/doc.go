// Package testkit provides real servers for tests: a new PostgreSQL database, a new
// SQLite file, a new virtual host of RabbitMQ, or a private server that the test may
// kill. Each belongs to one test and is removed when the test ends. So tests can run in
// parallel, in one process or in several.
//
// Package servers finds or starts the servers, at most once per process, when the first
// test needs them. A test that cannot have its server is skipped, and [Main] prints how
// many were skipped. With REQUIRE_BACKENDS=1 such a test fails. If a dependency is
// optional, the test is left out instead, see [WithoutOptional], and [Main] prints how
// many were left out. A test that calls [Long] is skipped by make test. This is not
// counted.
//
// To read the code, start with main.go and require.go, then database.go and broker.go.
// The other files can be read in any order.
package testkit
