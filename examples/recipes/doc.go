// Package recipes stores events together with business rows through libraries that
// write SQL: GORM, sqlx, sqlc, ent and bun. Copy the function that you need.
// gorm_events.go and collect.go store the events that an object of the domain records,
// and ent_events.go stores an event for each change that a client of ent makes.
//
// The module is not meant to be imported.
package recipes
