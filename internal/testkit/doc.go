// Package testkit provides real servers for tests: a new PostgreSQL database, a new SQLite
// file, a new virtual host of RabbitMQ, or a private server that the test may kill. Each
// belongs to one test and is removed when the test ends, so tests, and processes of tests,
// can run in parallel.
//
// Package servers finds or starts the servers, at most once per process, when the first
// test needs them. A test without its server is skipped, and [Main] prints how many were
// skipped. With REQUIRE_BACKENDS=1 such a test fails.
//
// To read the code, start with main.go and require.go, then database.go and broker.go. The
// other files stand alone.
package testkit
