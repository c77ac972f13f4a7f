// Package pgxoutbox tests package pgxoutbox with PostgreSQL. It is not in the module of that
// package, so that users of the package do not need the modules that the tests need.
package pgxoutbox
