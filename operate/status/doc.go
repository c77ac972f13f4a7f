// Package status shows a summary of the state of all tables: which messages wait, which forwarders
// run, and which messages failed. It reads a limited number of rows, so a screen may call it every
// second, even if the tables are large.
//
// A [Count] is exact up to 10,000. Above that, it contains an estimate of PostgreSQL's planner,
// which is as old as the statistics of the table.
//
// All calls only read. They read no payloads, so a login with the role of a watcher may use them.
package status
