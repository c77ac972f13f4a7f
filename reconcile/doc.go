// Package reconcile compares the messages that a sender has sent with the messages that
// consumers have handled. It works across databases, and finds the ids that differ.
//
//	sender's database                       consumers' database
//
//	once_outbox_sent ── Question ──────▶ Answer ── once_inbox, once_parked
//	                     Read ◀───────────┘
//	                      ├─▶ Report
//	                      └─▶ a finer question, if very many ids differ
//
// The two sides exchange files, or send the files in messages, and need no access to
// each other's tables. [Compare] does the whole exchange in a process that can reach
// both databases, with the same code.
//
// # How differences are found
//
// Each side divides its ids into minutes, by the time in the id. It divides the ids of
// a minute further, by the first bits of their hashes. Ids that are not UUIDs of
// version 7 contain no time, and are divided only by their hashes. The question
// contains one checksum for each group of about 512 ids. The consumers' side compares
// the checksums with its own, and lists its ids in the groups that differ. If there are
// too many such ids, it answers with checksums of smaller groups instead, and the
// sender asks again. To find a few differences among ten million ids, one question, one
// answer, and less than a megabyte are enough.
//
// # What is compared
//
// The messages of the sent log are compared, so forwarder.Config.KeepSent must be set
// in all forwarders. The last hour is left out, see [SenderConfig]. The period for
// which rows of the sent log or the inbox may have been deleted is also left out: from
// [Report].From on, both sides have all messages.
//
// The inbox does not contain topics. A sender must name all topics that a consumer
// receives, and all messages of these topics must come from this sender. Messages of
// consumers in dedup.Config.Idempotent cannot be compared, because the inbox does not
// remember them. If a consumer has business keys (dedup.Config.Key), it skips a message
// whose key was handled under another id, and does not remember the id of the skipped
// message. Such a message is reported as missing, and [Report].BusinessKeys warns you
// of this case.
//
// To read the code, start with key.go, tree.go, nodes.go, engine.go and settle.go,
// which do not use a database. Then read sender.go, receiver.go, consumer.go and
// file.go.
package reconcile
