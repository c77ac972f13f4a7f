// Package parked manages the table once_parked, which contains the messages that wait
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
//
// To read the code, start with states.go, store.go and queries.go. Then follow a row:
// receive.go or store.go (stores it), claim.go, poll.go and tenantturns.go (find and
// claim due rows), lease.go (a claimed row), context.go (what the handler's middlewares
// know of it), settle.go, persist.go, quarantine.go. order.go keeps the order of keys,
// early.go is for versions that arrive early, and repair.go mends keys. batch.go and
// envelope.go encode messages. consumers.go, uses.go and process.go know who runs.
// backlog.go counts rows, inbox.go uses the table of the inbox, and text.go cleans texts.
package parked
