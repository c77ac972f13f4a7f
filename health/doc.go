// Package health says whether a process works, for people, orchestrators and alerts:
// database, tables, broker, parts that run, the lag of the outbox, slots without a
// forwarder, and retention.
//
//	GET /health/live    200 while the process can answer
//	GET /health/ready   200 if it can do its work, else 503
//
// Liveness checks nothing else: the orchestrator restarts a process that is not live,
// and a restart repairs neither a database nor a broker. Readiness checks what this
// process needs itself. The lag, the slots and the retention are the state of the whole
// system. They are in the report, but they do not make a process unready: then all
// instances would be taken out of service together, and nobody would reduce the lag.
//
// To read the code, start with health.go, then checks.go and handler.go.
package health
