// Package databases tests what the library says of databases and drivers that
// it cannot work with, or not yet.
package databases
