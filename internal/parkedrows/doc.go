// Package parkedrows manages the table once_parked, which contains the messages that wait
// for their consumer. Packages retry, poison, durable and embedded use it. The package
// parks, claims and settles rows, and keeps the order of messages with the same
// ordering key.
//
// A new row has one of three states. It is waiting if it is between two attempts, was
// redelivered, or was stored by the embedded transport or a durable consumer. It is
// held if it waits behind the head of its ordering key. It is quarantined if its
// consumer has given up on the message before the message had a row.
//
// A process claims a waiting row when the row is due. The claim has a token and lasts
// for the time of a lease. Only the process that has the token can settle the row:
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
// If a process dies, its claimed rows become due again when their leases end, and a
// crash is counted for each of them. So no code has to look for the rows of processes
// that died. [Store.RepairKeys] looks for held rows whose head was deleted by hand.
package parkedrows
