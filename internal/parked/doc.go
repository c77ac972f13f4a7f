// Package parked is the one table of messages that wait for their consumer,
// and so what retry, quarantine and the embedded transport have in common.
//
// A row is born waiting (between two attempts, after a redelivery, on its way
// in the embedded transport, stored before it is handled), held behind the head
// of its ordering key, or quarantined. A waiting row that is due is claimed
// under a token for the length of a lease; only the holder of the token moves it
// on:
//
//	held ── its head goes ──┐
//	                        ▼
//	                     waiting ──claim──▶ waiting, leased ──▶ gone (done), or resolved (done, and kept)
//	                        ▲                     │      └────▶ quarantined ──▶ discarded
//	                        │                     │                 │
//	                        ├── due later ────────┤                 │
//	                        ├── lease ran out ────┘                 │
//	                        └── replay ─────────────────────────────┘
//
// If a process dies anywhere in between, its claimed rows are due again when
// the lease ends, with a crash counted. That is the only sweep of rows that
// wait; [Store.Tidy] sees to held ones whose head somebody has deleted by hand.
package parked
