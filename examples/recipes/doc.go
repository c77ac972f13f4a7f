// Package recipes stores events together with business rows through libraries that
// write SQL: GORM, sqlx, sqlc, ent and bun. Copy the function that you need.
// gorm_events.go and collect.go store the events that an object of the domain records,
// and ent_events.go stores an event for each change that a client of ent makes.
//
// handlers.go writes in the transaction of a consumer's handler through sqlc and bun, and
// pgx.go gives this transaction as a pgx.Tx.
//
// The module is not meant to be imported.
package recipes
