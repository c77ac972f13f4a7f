// Package badinput has tables of what must not happen and does: rows edited by
// hand, deliveries from strangers, settings that make no sense, command lines
// that were typed wrong. Each case says what becomes of it, and a message that
// is bad lies between two good ones that must not notice.
package badinput
