// Package status shows the state of the tables at a glance: what waits, who forwards
// it, and what failed. It reads a bounded number of rows, so that a screen may call
// it every second, however large the tables are.
//
// A [Count] is exact up to 10,000. Above that it has an estimate of PostgreSQL's
// planner, which is as old as the statistics of the table.
//
// All calls only read. They need no payload, so a login with the role of a watcher
// may call them.
//
// To read the code, start with status.go, then queries.go, forwarders.go, flow.go and
// days.go.
package status
