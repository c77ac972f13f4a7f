// Package servers finds or starts the real PostgreSQL and RabbitMQ that the
// tests, the measurements and the example run against.
//
// [Resolve] looks for servers in this order, each of the two on its own:
//
//  1. PG_DSN and AMQP_URL, if they are set (and RABBITMQCTL, if it is not the
//     one in PATH that speaks to that broker);
//  2. the default ports on 127.0.0.1, if a server there lets us in;
//  3. private servers from the binaries of this machine, as children;
//  4. the repository's compose.yaml, if a docker daemon answers.
//
// [StartPostgres] and [StartRabbit] start private ones that a test may kill,
// freeze and fill; [StartPgbouncer] puts a pooler in front. They listen on free
// ports of 127.0.0.1, keep everything in a directory of their own, and on Linux
// die with the process that started them, however that ends.
//
// It runs on Linux and macOS.
package servers
