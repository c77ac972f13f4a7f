// Package schema manages the tables of this module: their names, their numbered
// migrations for PostgreSQL and SQLite, and a check that a database has the version
// that this code needs.
//
// Call [Up] when your service starts. Several processes may do so at the same time. If
// you have your own migration tool, copy the text of [SQL] into it, and call [Check] at
// the start of the service instead.
package schema
