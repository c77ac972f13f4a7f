// Package hint wakes a forwarder from another process. A producer calls [Sender.Hint]
// after its commit, which sends an empty UDP datagram. The [Receiver] in the forwarder's
// process then calls Forwarder.Hint.
//
// A hint is never needed. If a datagram is lost, or the forwarder runs elsewhere, it
// finds the message by its poll, within forwarder.Config.PollMax.
//
// To read the code, start with sender.go, then receiver.go.
package hint
