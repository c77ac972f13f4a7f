// Package parked is the table once_parked: the messages that wait for their
// consumer. retry, poison, durable and the embedded transport share it. The
// package parks, claims and settles rows, and keeps the order of ordering keys.
//
// A new row is waiting (between two attempts, after a redelivery, stored by the
// embedded transport or by a durable consumer), held behind the head of its
// ordering key, or quarantined. A waiting row that is due is claimed with a token
// for the length of a lease. Only the holder of the token can settle the row:
//
//	held ── head settled ───┐
//	                        ▼
//	                     waiting ──claim──▶ waiting, leased ──▶ deleted (handled), or resolved (handled, and kept)
//	                        ▲                     │      └────▶ quarantined ──▶ discarded
//	                        │                     │                 │
//	                        ├── due later ────────┤                 │
//	                        ├── lease ended ──────┘                 │
//	                        └── replay ─────────────────────────────┘
//
// If a process dies, the rows that it has claimed are due again when their lease
// ends, with a crash counted. Nothing else looks for abandoned rows.
// [Store.RepairKeys] looks for held rows whose head was deleted by hand.
package parked
