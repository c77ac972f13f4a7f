// Package reconcile compares the messages that a sender has sent with the messages that
// consumers have handled. It works across databases, and finds the ids that differ.
//
//	sender's database                       consumers' database
//
//	once_outbox_sent ── Question ──────▶ Answer ── once_inbox, once_parked
//	                     Read ◀───────────┘
//	                      └─▶ Report
//
// The two sides exchange two files, or send them as messages, and need no access to each
// other's tables. [Compare] does the same in a process that can reach both databases.
//
// # How differences are found
//
// Each side divides its ids into minutes, by the time in the id, and the ids of a minute
// into parts of about 512 ids, by their hashes. Ids that are not UUIDs of version 7
// contain no time, and are divided only by their hashes. The question has a checksum of
// each part. The consumers' side compares the checksums with its own, and lists its ids
// in the parts that differ. The sender compares these ids with its own.
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
package reconcile
