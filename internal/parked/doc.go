// Package parked is the one table of messages that wait for their consumer,
// and so what retry, quarantine and the embedded transport have in common.
//
// A row is born waiting (between two attempts, after a redelivery, on its way
// in the embedded transport) or quarantined. A waiting row that is due is
// claimed under a token for the length of a lease; only the holder of the
// token moves it on:
//
//	waiting ──claim──▶ waiting, leased ──▶ gone (done) or resolved (done after a replay)
//	   ▲                     │      └────▶ quarantined ──▶ discarded
//	   │                     │                 │
//	   └── due later, or ────┘                 │
//	   └── lease ran out, crash counted        │
//	   └────────────── replay ─────────────────┘
//
// If a process dies anywhere in between, its claimed rows are due again when
// the lease ends. That is the only sweep.
package parked
