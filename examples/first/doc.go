// Command first is the first program of README.md.
package main
