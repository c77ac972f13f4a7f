// Package oncetest tests whether a handler is safe if messages are delivered more than once.
//
// The inbox lets each message take effect once if the handler follows two rules: it writes only in
// its transaction, and its writes depend only on the message and the database. [Run] tests this. It
// delivers messages to the handler, through a real inbox in a real database:
//
//   - once: this is the reference, and a second run must give the same result;
//   - twice in a row, and twice at the same time;
//   - with the connection lost at each statement of the transaction, before the
//     commit, and after the commit but before its reply; then the message is
//     delivered again, as by a broker;
//   - with each statement failing once, on a connection that stays open;
//   - with adjacent messages swapped.
//
// Each case begins with the state of the database before the reference, and must end with the state
// of the database after the reference. Run compares the handler's tables and the messages in the
// outbox. A failed test names the difference:
//
//	delivered twice at once: table payments has 2 rows where one delivery gives 1: (order_id="17" amount=5) is too many
//
// [RunOrder] tests whether a service publishes the events of an ordering key in the order in which
// its transactions commit.
//
// The package imports no database driver. It wraps the connections of your own pool, so that it can
// lose them at a given statement.
package oncetest
