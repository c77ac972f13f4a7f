// Package hint wakes a forwarder from another process. After its commit, a producer
// calls [Sender.Hint], which sends a small UDP datagram. The [Receiver] in the
// forwarder's process then calls Forwarder.Hint.
//
// A hint may be lost. In this case the forwarder finds the message with its next poll,
// within forwarder.Config.PollMax.
package hint
