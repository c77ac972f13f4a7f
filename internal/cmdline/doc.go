// Package cmdline is what the repository's commands have in common: what was
// typed wrong is named with its flag, and with what would be right.
package cmdline
