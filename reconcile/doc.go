// Package reconcile compares what a sender has sent with what consumers have
// handled, across databases, and finds the ids that differ.
//
//	sender's database                       consumers' database
//
//	once_outbox_sent ── Question ──────▶ Answer ── once_inbox, once_parked
//	                     Read ◀───────────┘
//	                      ├─▶ Report
//	                      └─▶ a finer question, if very much differs
//
// The two sides exchange files, or bytes in a message, and need no access to each
// other's tables. [Compare] does the whole exchange in a process that can reach both
// databases, with the same code.
//
// # How differences are found
//
// Each side divides its ids into minutes, by the time in the id, and the ids of a
// minute by the first bits of their hashes. Ids that are no UUIDs of version 7 have
// no time, and are divided by their hashes only. The question contains one checksum
// for each group of about 512 ids. The consumers' side compares the checksums with its
// own, and lists its ids of the groups that differ. If these are too many, it answers
// with finer checksums instead, and the sender asks again. So a few
// differences among ten million ids take one question, one answer, and less than a
// megabyte.
//
// # What is compared
//
// Compared are messages of the sent log, so forwarder.Config.KeepSent must be set in
// all forwarders. The last hour is left out, see [SenderConfig]. So is the time of
// which the sent log or the inbox may have been deleted: [Report] says from when both
// sides are complete.
//
// The inbox does not know topics. A sender must name all topics that a consumer
// receives, and all messages of these topics must come from this sender. Messages of
// consumers in dedup.Config.Idempotent cannot be compared, because the inbox does not
// remember them. A consumer with business keys (dedup.Config.Key) does not remember the
// id of a message that it skipped because its key was handled under another id. Such a
// message is reported as missing, and [Report].BusinessKeys warns of it.
//
// To read the code, start with key.go, tree.go, nodes.go, engine.go and settle.go, which
// know no database. Then read sender.go, receiver.go, consumer.go and file.go.
package reconcile
