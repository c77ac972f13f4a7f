// Package demo places orders at the order service, injects faults, and counts the
// effects in the database. Your own service does not need it.
package demo
