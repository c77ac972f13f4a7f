// Package health reports to people, orchestrators and alerts whether a process works.
// It checks the database, its tables, the broker, the parts that must run, the lag of
// the outbox, slots without a forwarder, and retention.
//
//	GET /health/live    200 while the process can answer
//	GET /health/ready   200 if it can do its work, else 503
//
// Liveness checks only that the process answers: the orchestrator restarts a process
// that is not live, and a restart repairs neither a database nor a broker. Readiness
// checks the things that this process itself needs. The lag, the slots and the
// retention are the state of the whole system. They are in the report, but they do not
// make a process unready. Otherwise the orchestrator would take all instances out of
// service together, and no instance would reduce the lag.
package health
