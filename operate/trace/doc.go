// Package trace shows where a message is, and lists its past events. One call reads the outbox, its
// blocked keys, the sent log, the dead letters, the parked messages, the inbox and the audit log of
// one database. It returns the events in the order of their times.
//
//	outbox ── sent ──▶ (broker) ──▶ parked ── handled ──▶ inbox
//	   └── given up ──▶ dead letters      └── given up ──▶ quarantine
//
// You can search for a message by its id, its aggregate or its tenant. With Query.Causes, the
// answer also contains the messages that were caused by it, see outbox.CausationID.
//
// All tables are read in one snapshot. Indexes find the rows of a message in all tables except the
// outbox, where each index would slow down the business transactions. In the outbox, and among the
// parked messages that wait, a call reads a limited number of rows, and Answer.Notes says what it
// has left out.
//
// Between the confirm of the broker and the moment at which a consumer stores or handles a message,
// no table contains it. Message.Where then says this.
package trace
