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
// Each side divides its ids into minutes, by the time in the id, and into parts of about 512 ids,
// by their hashes. Ids that are not UUIDs of version 7 contain no time. The question has a checksum
// of each part. The consumers' side lists its ids in the parts with other checksums, and the sender
// compares them with its own.
//
// # What is compared
//
// The messages of the sent log are compared, so forwarder.Config.KeepSent must be set in all
// forwarders. The last hour is left out, see [SenderConfig], and the period for which rows may have
// been deleted: from [Report].From on, both sides have all messages.
//
// The inbox does not contain topics: a sender must name all topics that a consumer receives, and
// all their messages must come from it. Consumers in dedup.Config.Idempotent cannot be compared,
// because the inbox does not remember their messages. A message that was skipped because its
// business key (dedup.Config.Key) was handled under another id is reported as missing;
// [Report].BusinessKeys warns you.
package reconcile
