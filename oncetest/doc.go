// Package oncetest shows whether a handler is safe where messages come more
// than once.
//
// The inbox sees to it that a message takes effect once, if the handler keeps
// to its side: all that it does is in its transaction, and what it does follows
// from the message and the database alone. [Run] looks whether it does. It
// delivers messages to the handler, through a real inbox in a real database,
//
//   - once: this is the reference, and must come out the same a second time;
//   - twice in a row, and twice at once;
//   - with the connection lost at each statement of the transaction, before the
//     commit takes effect, and after it, before the answer; then once more, as a
//     broker does;
//   - with each statement failing once, which leaves the connection as it is;
//   - with neighbours swapped.
//
// Each time the database is as it was before the reference, and has to be as
// it was after it: the contents of the handler's tables and the messages in the
// outbox are compared. What differs is told in the test's words:
//
//	delivered twice at once: table payments has 2 rows where once gives 1: (order_id="17" amount=5) is too many
//
// [RunOrder] examines something else: whether a service publishes the events of
// an ordering key in the order in which its transactions commit.
//
// It brings no database driver: the connections of the handler's own pool are
// wrapped, so that they can be lost at a given statement.
package oncetest
