// Package demo places orders at the order service, injects faults, and counts the
// effects in the database. Your own service does not need it.
//
// To read the code, start with demo.go, load.go (places orders) and audit.go (counts
// effects). faults.go and outage.go inject faults, and report.go prints the result.
package demo
