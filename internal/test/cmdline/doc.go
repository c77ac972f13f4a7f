// Package cmdline checks the command lines of the repository's commands. Its errors
// name the flag and the allowed values.
package cmdline
