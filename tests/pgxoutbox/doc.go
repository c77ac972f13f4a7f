// Package pgxoutbox tests package pgxoutbox with PostgreSQL. It is not in the module of
// that package, so that its users do not need what the tests need.
package pgxoutbox
