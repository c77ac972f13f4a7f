// Package badinput has tables of what must not happen and does: rows edited by
// hand, deliveries from strangers, settings that make no sense. Each case says
// what becomes of it, and lies between two good messages that must not notice.
package badinput
