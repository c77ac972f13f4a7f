// Package journey answers where a message is, and what happened to it: one call reads
// the outbox, its blocked keys, the sent log, the dead letters, the parked messages,
// the inbox and the audit of one database, and returns the events in the order of
// their times.
//
//	outbox ── sent ──▶ (broker) ──▶ parked ── handled ──▶ inbox
//	   └── given up ──▶ dead letters      └── given up ──▶ quarantine
//
// A message is found by its id, its aggregate or its tenant. With Query.Causes the
// answer also has the messages that it caused, see outbox.CausationID.
//
// All tables are read as of one moment. Reads are bounded: indexes find the rows of a
// message everywhere but in the outbox, where each index would slow down the business
// transactions. There, and among the parked messages that wait, a call looks at a
// limited number of rows. Answer.Notes says so if rows were left out.
//
// No table shows a message between the confirm of the broker and the moment at which
// a consumer stores or handles it: then the message is in the broker. Message.Where
// says it in words.
//
// To read the code, start with query.go and answer.go, then find.go (which messages),
// tables.go and outbox.go (their rows), and where.go (the words).
package journey
