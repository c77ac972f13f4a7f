// Package schema keeps the tables that the rest of the module works on: their
// names, their numbered migrations for PostgreSQL and SQLite, and a check that
// a database has the version this code expects.
//
// A service calls [Up] once at start, from as many processes as it likes, or
// takes the text from [SQL] into the migration tool it already has and calls
// [Check] at start instead.
package schema
