// Package servers finds or starts PostgreSQL and RabbitMQ servers for tests,
// benchmarks and the example.
//
// [Resolve] looks for each of the two servers in this order:
//
//  1. PG_DSN and AMQP_URL, if they are set. Set RABBITMQCTL too if rabbitmqctl in
//     PATH does not connect to that broker.
//  2. The default ports on 127.0.0.1, if a server there accepts the connection.
//  3. Private servers from the binaries of this machine, as child processes.
//  4. The repository's deploy/compose.yaml, if a docker daemon answers.
//
// [StartPostgres] and [StartRabbit] start private servers that a test may kill, freeze
// and fill. [StartPgbouncer] starts a pooler in front of a server. They listen on free
// ports of 127.0.0.1 and store all files in their own directory. On Linux they die with
// the process that has started them, even if that process is killed.
//
// The package runs on Linux and macOS.
package servers
