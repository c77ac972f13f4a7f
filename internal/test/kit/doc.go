// Package kit provides real servers for tests: a new PostgreSQL database, a new
// SQLite file, a new virtual host of RabbitMQ, or a private server that the test may
// kill. Each belongs to one test. When the test ends, it is removed, or emptied for
// another test. So tests can run in parallel, in one process or in several. [Bench] is a
// test with a database that has the tables, [OK] ends a test with an error.
//
// Package servers finds or starts the servers, at most once per process, when the first
// test needs them. If the server of a test is missing, the test is skipped, and [Main]
// prints the number of such tests. With REQUIRE_BACKENDS=1 the test fails instead. If
// an optional dependency is missing, the test is also skipped, see [WithoutOptional].
// [Main] prints the number of these tests separately. make test skips tests that call
// [Long], and [Main] does not count them.
package kit
