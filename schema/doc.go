// Package schema manages the tables of this module: their names, their numbered
// migrations for PostgreSQL and SQLite, and a check that a database has the version
// that this code needs.
//
// Call [Up] when your service starts. Several processes may do so at the same time. If
// you have your own migration tool, copy the text of [SQL] into it, and call [Check] at
// the start of the service instead.
//
// To read the code, start with config.go (names) and migrations.go, then up.go,
// layout.go (the inbox by day), check.go and database.go (the kind of database).
// roles.go, rights.go and durability.go can be read in any order.
package schema
