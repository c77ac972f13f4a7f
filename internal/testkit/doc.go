// Package testkit gives tests real servers: a new PostgreSQL database, a new
// SQLite file, a new virtual host of RabbitMQ, or a whole private server to
// kill. What a test was given is its own, and is gone when the test ends, so
// that tests, and processes of tests, can run side by side.
//
// Servers are found or started by package servers, at most once in a process
// and only when a test asks. A test that cannot have its server is skipped,
// and [Main] says how many were; with REQUIRE_BACKENDS=1 it fails.
package testkit
